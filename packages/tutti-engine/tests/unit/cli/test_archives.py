# SPDX-License-Identifier: Apache-2.0
"""``tutti export`` and ``tutti import``: chunks come through a file right, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine import CacheGroup, Geometry
from tutti_engine.backends.local_files import prepare_files
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Record
from tutti_engine.errors import ArchiveError
from tutti_engine.movers.plain import checksum
from tutti_engine.namespace import Namespace
from tutti_engine.store import exporting as store_export
from tutti_engine.store import importing as store_import
from tutti_engine.store.archive import PREFIX, ArchiveHeader, ArchiveReader
from tutti_engine.store.layout import MAX_FILES_PER_ROOT, MIN_FILE_BYTES
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.share import other_stores
from tutti_engine.testing.small_server import NAMESPACE, SmallServer

CAPACITY = 16 << 20


@pytest.fixture
def keys(owning) -> list[bytes]:
    return [b"chunk %d" % number for number in range(6)]


@pytest.fixture
def archive(tutti, store, tmp_path) -> Path:
    """A file with all chunks of ``store``."""
    file = tmp_path / "chunks.tutti"
    tutti("export", store, "--to", file)
    return file


def empty(path: Path) -> Path:
    path.mkdir()
    return path


def names(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


def rows(root: Path) -> dict[int, bytes]:
    with closing(sqlite3.connect(root / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
        return dict(connection.execute("SELECT slot, key FROM chunks"))


def loaded(owning, root: Path, keys: list[bytes], capacity: int = CAPACITY) -> list[str]:
    """Return what a server makes of the chunks."""
    with SmallServer([root], capacity_bytes=capacity, geometry=owning.GEOMETRY) as server:
        return [server.load_chunk(key) for key in keys]


def test_chunks_come_through_a_file_into_a_new_store(tutti, archive, tmp_path, owning, keys):
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    root = empty(tmp_path / "there")
    done = tutti("import", archive, root, "--capacity-bytes", CAPACITY, "--json").document
    assert (done["chunks"], done["imported"], done["present"], done["no_room"]) == (6, 6, 0, 0)
    tutti("verify", root)
    assert loaded(owning, root, keys) == ["right"] * 6


def test_a_second_import_finds_everything_there(tutti, archive, store, keys, owning):
    done = tutti("import", archive, store, "--json").document
    assert (done["imported"], done["present"]) == (0, 6)
    assert loaded(owning, store, keys) == ["right"] * 6


def test_only_the_keys_that_are_asked_for(tutti, store, tmp_path, keys):
    asked = tmp_path / "keys"
    asked.write_text(f"{keys[1].hex()}\n\n{keys[4].hex()}\n{b'nobody'.hex()}\n")
    file = tmp_path / "some"
    done = tutti("export", store, "--to", file, "--keys", asked, "--json", code=1).document
    assert (done["chunks"], done["absent"]) == (2, 1)
    with ArchiveReader.open(file) as archive:
        found = []
        for head in archive.chunks():
            found.append(head.key)
            assert len(list(archive.segments(head))) == 2
    assert set(found) == {keys[1], keys[4]}
    asked.write_text("no hex\n")
    assert "line 1" in tutti("export", store, "--to", tmp_path / "x", "--keys", asked, code=2).stderr


def test_what_lies_behind_the_data_does_not_leave(tutti, store, tmp_path, owning):
    """Pages fill 6,000 of 8,192 bytes; the rest is whatever was in memory."""
    secret = b"somebody else's"
    path = store / NAMESPACE.digest / "rank-0" / "0.seg"
    geometry = owning.GEOMETRY
    with path.open("r+b") as file:
        for slot in range(6):
            file.seek(slot * geometry.chunk_bytes + geometry.segment_data_bytes)
            file.write(secret)
    tutti("export", store, "--to", tmp_path / "file")
    assert secret not in (tmp_path / "file").read_bytes()


def test_a_damaged_chunk_is_left_out_and_told(tutti, store, tmp_path, owning, keys):
    with (store / NAMESPACE.digest / "rank-0" / "0.seg").open("r+b") as file:
        file.seek(2 * owning.GEOMETRY.chunk_bytes + 10)
        file.write(b"\xff\x00")
    file = tmp_path / "file"
    found = tutti("export", store, "--to", file, "--json", code=1).document
    assert (found["chunks"], found["damaged"], found["changed"]) == (5, 1, 0)
    root = empty(tmp_path / "there")
    tutti("import", file, root, "--capacity-bytes", CAPACITY)
    assert sorted(loaded(owning, root, keys)) == ["miss"] + ["right"] * 5


def test_a_chunk_that_is_filled_anew_while_it_is_read_is_left_out(tutti, store, tmp_path, monkeypatch):
    real = store_export.Exporter._add_segments

    def and_replaced(self, slot, head):
        written = real(self, slot, head)
        if slot == 3:
            with closing(sqlite3.connect(store / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
                connection.execute(
                    "UPDATE chunks SET generation = generation + 1, key = x'00' WHERE slot = 3"
                )
                connection.commit()
        return written

    monkeypatch.setattr(store_export.Exporter, "_add_segments", and_replaced)
    found = tutti("export", store, "--to", tmp_path / "file", "--json").document
    assert (found["chunks"], found["changed"], found["damaged"]) == (5, 1, 0)
    with ArchiveReader.open(tmp_path / "file") as archive:
        assert archive.check() == 5


def test_beside_a_server_export_works_and_import_names_its_pid(tutti, tmp_path, owned, owning, keys):
    root = empty(tmp_path / "root")
    pid = owned(root)
    file = tmp_path / "file"
    assert tutti("export", root, "--to", file, "--json").document["chunks"] == 6
    for more in ([], ["--capacity-bytes", CAPACITY]):
        refused = tutti("import", file, root, *more, code=2)
        assert str(pid) in refused.stderr and refused.stderr.count("\n") == 1
    other = empty(tmp_path / "other")
    tutti("import", file, other, "--capacity-bytes", CAPACITY)
    assert loaded(owning, other, keys) == ["right"] * 6


def test_the_file_appears_whole_or_not_at_all(tutti, store, tmp_path, monkeypatch):
    file = tmp_path / "out" / "file"
    file.parent.mkdir()
    file.write_text("mine")
    assert "--force" in tutti("export", store, "--to", file, code=2).stderr
    real = store_export.Exporter.add
    calls: list[int] = []

    def fails(self, row):
        calls.append(1)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(self, row)

    monkeypatch.setattr(store_export.Exporter, "add", fails)
    assert "No space left" in tutti("export", store, "--to", file, "--force", code=2).stderr
    assert file.read_text() == "mine" and names(file.parent) == ["file"]
    monkeypatch.undo()
    tutti("export", store, "--to", file, "--force")
    with ArchiveReader.open(file) as archive:
        assert archive.check() == 6
    assert names(file.parent) == ["file"]


def test_a_file_that_somebody_makes_meanwhile_stays(tutti, store, tmp_path, monkeypatch):
    target = tmp_path / "file"
    real = store_export.refuse_existing

    def and_made(path, replace):
        real(path, replace)
        path.write_text("theirs")

    monkeypatch.setattr(store_export, "refuse_existing", and_made)
    monkeypatch.setattr(
        store_export.ArchiveWriter, "finish", lambda self: target.unlink()
    )  # the first look's
    assert "exists" in tutti("export", store, "--to", target, code=2).stderr
    assert target.read_text() == "theirs"
    assert not [name for name in names(tmp_path) if name.endswith(".part")]


def test_an_export_that_has_no_room_is_refused_before_it_begins(tutti, store, tmp_path, monkeypatch):
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(store_export.os, "fstatvfs", lambda descriptor: Full)
    assert "4096 free" in tutti("export", store, "--to", tmp_path / "file", code=2).stderr
    assert not (tmp_path / "file").exists()


def test_a_full_store_takes_no_more_than_it_has_places(tutti, archive, tmp_path, owning, keys):
    root = empty(tmp_path / "small")
    capacity = bytes_needed(4, geometry=owning.GEOMETRY, ranks=1, roots=1)
    done = tutti("import", archive, root, "--capacity-bytes", capacity, "--json", code=1).document
    assert (done["imported"], done["no_room"]) == (4, 2)
    (found,) = other_stores([root])
    assert found.occupied <= capacity
    assert sorted(loaded(owning, root, keys, capacity)) == ["miss"] * 2 + ["right"] * 4
    again = tutti("import", archive, root, "--json", code=1).document
    assert (again["imported"], again["present"], again["no_room"]) == (0, 4, 2)


def test_a_store_keeps_what_it_has(tutti, archive, tmp_path, owning, keys):
    root = tmp_path / "there"
    with owning.start([root]) as server:
        server.store_chunks([b"mine", *keys[:2]])
    done = tutti("import", archive, root, "--json").document
    assert (done["imported"], done["present"]) == (4, 2)
    assert loaded(owning, root, [b"mine", *keys]) == ["right"] * 7


@pytest.mark.parametrize("capacity", ["smaller", "needs larger files"])
def test_a_capacity_with_which_chunks_would_go_is_refused(tutti, archive, store, owning, keys, capacity):
    most = (MIN_FILE_BYTES // owning.GEOMETRY.chunk_bytes) * MAX_FILES_PER_ROOT
    places = 2 if capacity == "smaller" else most + 1
    size = bytes_needed(places, geometry=owning.GEOMETRY, ranks=1, roots=1)
    refused = tutti("import", archive, store, "--capacity-bytes", size, code=2).stderr
    assert f"{4 if capacity == 'smaller' else 6} that the store" in refused
    assert sorted(rows(store).values()) == keys
    assert loaded(owning, store, keys) == ["right"] * 6


def test_a_replica_keeps_its_size(tutti, archive, tmp_path, owning):
    root = empty(tmp_path / "there")
    with LocalStore.open(
        [root], NAMESPACE, owning.GEOMETRY, ranks=1, capacity_bytes=CAPACITY, replica=(0, 2)
    ) as made:
        places = len(made.chunk_ids)
    assert tutti("import", archive, root, "--json").document["imported"] == 6
    assert tutti("ls", root, "--json").document["stores"][0]["capacity_chunks"] == places


def test_a_dry_run_says_the_same_and_changes_nothing(tutti, archive, tmp_path, owning, keys):
    root = tmp_path / "there"
    with owning.start([root]) as server:
        server.store_chunks([b"mine", *keys[:2]])
    before = (root / NAMESPACE.digest / CATALOGUE_NAME).read_bytes()
    done = tutti("import", archive, root, "--dry-run", "--json").document
    assert (done["dry_run"], done["imported"], done["present"]) == (True, 4, 2)
    assert (root / NAMESPACE.digest / CATALOGUE_NAME).read_bytes() == before
    nothing = empty(tmp_path / "nothing")
    assert tutti("import", archive, nothing, "--dry-run", "--json").document["imported"] == 6
    assert names(nothing) == []


def test_a_new_store_and_one_beside_others_need_the_capacity(tutti, archive, store, tmp_path):
    nothing = empty(tmp_path / "nothing")
    assert "--capacity-bytes" in tutti("import", archive, nothing, code=2).stderr
    assert names(nothing) == []
    (store / ("0" * 32)).mkdir()
    assert "other stores" in tutti("import", archive, store, code=2).stderr
    tutti("import", archive, store, "--capacity-bytes", CAPACITY)


def test_another_namespace_or_shape_is_refused_with_the_reason(tutti, archive, tmp_path, owning):
    refused = tutti("import", archive, tmp_path, "--namespace", "abc", "--capacity-bytes", CAPACITY, code=2)
    assert NAMESPACE.digest in refused.stderr and "small server" in refused.stderr
    root = tmp_path / "other"
    wider = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)
    with SmallServer([root], capacity_bytes=CAPACITY, geometry=wider) as server:
        server.store_chunks([b"mine"])
    assert "num_layers is 2 in the file and 3 in the store" in tutti("import", archive, root, code=2).stderr
    assert list(rows(root).values()) == [b"mine"]


def test_what_was_not_made_durable_is_not_in_the_store(tutti, archive, tmp_path, owning, keys, monkeypatch):
    """The third batch's data is refused by the drive: its rows must not be written."""
    root = empty(tmp_path / "there")
    monkeypatch.setattr(store_import, "BATCH_CHUNKS", 2)
    real, calls = os.fdatasync, []

    def refuses(descriptor):
        # The store's own files are not its business.
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".seg":
            calls.append(descriptor)
            if len(calls) == 3:
                raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", refuses)
    refused = tutti("import", archive, root, "--capacity-bytes", CAPACITY, code=2)
    assert "after 4 chunks" in refused.stderr and "Input/output error" in refused.stderr
    monkeypatch.undo()
    assert len(rows(root)) == 4
    tutti("verify", root)
    done = tutti("import", archive, root, "--json").document
    assert (done["imported"], done["present"]) == (2, 4)
    assert loaded(owning, root, keys) == ["right"] * 6


KILLED = """
import os, sys
from pathlib import Path
from tutti_engine.store import importing as store_import
from tutti_engine.cli.app import app
store_import.BATCH_CHUNKS = 2
real, calls = os.fdatasync, []
def dies(descriptor):
    if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".seg":
        calls.append(descriptor)
        if len(calls) == 3:
            os.kill(os.getpid(), 9)
    real(descriptor)
os.fdatasync = dies
app(sys.argv[1:])
"""


def test_an_import_that_is_killed_leaves_what_it_made_durable_and_goes_on(
    tutti, archive, tmp_path, owning, keys
):
    root = empty(tmp_path / "there")
    command = [sys.executable, "-c", KILLED, "import", archive, root, "--capacity-bytes", str(CAPACITY)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    assert sorted(loaded(owning, root, keys)) == ["miss"] * 2 + ["right"] * 4
    done = tutti("import", archive, root, "--json").document
    assert (done["imported"], done["present"]) == (2, 4)
    assert loaded(owning, root, keys) == ["right"] * 6
    (found,) = tutti("stat", root, "--json").document["stores"]
    assert found["counters"]["imported_chunks"] == 6


def test_beside_a_server_that_evicts_all_the_time_only_whole_chunks_leave(
    tutti, tmp_path, owning, monkeypatch
):
    """Places are filled anew while they are read: what comes out under a key is that key's."""
    root, there = tmp_path / "root", empty(tmp_path / "there")
    files: list[Path] = []
    capacity = bytes_needed(24, geometry=owning.GEOMETRY, ranks=1, roots=1)
    stop = threading.Event()
    # For each chunk that is read the server begins to store others, whatever either of them costs.
    asked, begun = threading.Semaphore(0), threading.Semaphore(0)
    stored: list[bytes] = []
    read = store_export.Reader.read

    def read_beside_a_store(*args: Any) -> Any:
        asked.release()
        assert begun.acquire(timeout=60)
        return read(*args)

    monkeypatch.setattr(store_export.Reader, "read", read_beside_a_store)
    with SmallServer([root], capacity_bytes=capacity, geometry=owning.GEOMETRY) as server:

        def store() -> None:
            some = [b"churn %d" % (len(stored) + each) for each in range(8)]
            stored.extend(some)
            server.store_chunks(some)

        def churn() -> None:
            while asked.acquire() and not stop.is_set():
                begun.release()
                store()

        while len(stored) < 24:
            store()
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            changed = written = 0
            while len(files) < 3 or not changed or written < 8:
                file = tmp_path / f"file-{len(files)}"
                done = tutti("export", root, "--to", file, "--json", code=None).document
                assert done["damaged"] == 0
                changed += done["changed"]
                written += done["chunks"]
                files += [file]
                assert len(files) < 100, "the server does not store"
        finally:
            stop.set()
            asked.release()
            thread.join()
    for file in files:
        tutti("import", file, there, "--capacity-bytes", CAPACITY)
    with SmallServer([there], capacity_bytes=CAPACITY, geometry=owning.GEOMETRY) as server:
        answers = [server.load_chunk(key) for key in stored]
    assert answers.count("right") >= 8 and "wrong" not in answers


def test_a_place_that_failed_twice_is_not_filled(tutti, archive, tmp_path, owning):
    root = tmp_path / "there"
    with SmallServer([root], capacity_bytes=CAPACITY, geometry=owning.GEOMETRY) as server:
        assert server.store.layout.num_chunks > 32
    with closing(sqlite3.connect(root / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
        connection.execute("INSERT INTO suspects VALUES (1, 2)")
        connection.commit()
    tutti("import", archive, root)
    assert set(rows(root)) == {0, 2, 3, 4, 5, 6}


def test_a_file_that_is_cut_or_changed_changes_nothing(tutti, archive, tmp_path):
    """Every kind of damage that chance does: none of it may reach a store."""
    whole = archive.read_bytes()
    chance = random.Random(7)
    bad = tmp_path / "bad"
    root = empty(tmp_path / "there")
    spots = {0, 9, 13, 40, len(whole) - 1, len(whole) - 40} | {
        chance.randrange(len(whole)) for _ in range(40)
    }
    for spot in sorted(spots):
        bad.write_bytes(whole[:spot] + bytes([whole[spot] ^ 1 << chance.randrange(8)]) + whole[spot + 1 :])
        tutti("import", bad, root, "--capacity-bytes", CAPACITY, code=2)
        bad.write_bytes(whole[:spot])
        tutti("import", bad, root, "--capacity-bytes", CAPACITY, code=2)
    bad.write_bytes(whole + b"\0")
    assert "follows its end" in tutti("import", bad, root, "--capacity-bytes", CAPACITY, code=2).stderr
    assert names(root) == []


def forged(whole: bytes, change) -> bytes:
    """Return a file with another description, and the digests that make it believable."""
    magic, version, length = PREFIX.unpack(whole[: PREFIX.size])
    document = json.loads(whole[PREFIX.size : PREFIX.size + length])
    changed = change(document)
    text = (json.dumps(document) if changed is None else changed).encode()
    prefix = PREFIX.pack(magic, version, len(text))
    head = prefix + text + hashlib.blake2b(prefix + text, digest_size=16).digest()
    body = whole[PREFIX.size + length + 16 : -32]
    return head + body + hashlib.blake2b(head + body, digest_size=32).digest()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(facts={"model": "../../etc"}),
        lambda document: document.update(namespace="../../../tmp/x"),
        lambda document: document.update(ranks=1 << 40),
        lambda document: document.update(num_layers=0),
        lambda document: document.update(num_layers=2.0),
        lambda document: document.update(segment_bytes=1 << 60, chunk_bytes=1 << 61, data_bytes=[1 << 60]),
        lambda document: document.update(data_bytes=[]),
        lambda document: document.update(data_bytes=[6000, 6000]),
        lambda document: document.update(data_bytes=[-1]),
        lambda document: document.update(data_bytes="6000"),
        lambda document: document.update(facts=[]),
        lambda document: document.pop("ranks") and None,
        lambda document: "[" * 100_000,
        lambda document: "null",
        lambda document: '{"facts": {"a": NaN}}',
    ],
)
def test_a_description_that_no_export_wrote_is_refused(tutti, archive, tmp_path, change):
    bad = tmp_path / "bad"
    bad.write_bytes(forged(archive.read_bytes(), change))
    root = empty(tmp_path / "there")
    refused = tutti("import", bad, root, "--capacity-bytes", CAPACITY, code=2)
    assert refused.stderr.count("\n") == 1 and str(bad) in refused.stderr
    assert names(root) == []


def test_bytes_that_do_not_match_their_checksum_are_left_out_even_if_all_digests_are_right(
    tutti, archive, tmp_path, owning, keys
):
    whole = archive.read_bytes()
    at = len(whole) - 32 - 16 - 100
    body = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 : -32]
    bad = tmp_path / "bad"
    bad.write_bytes(body + hashlib.blake2b(body, digest_size=32).digest())
    root = empty(tmp_path / "there")
    assert tutti("import", bad, root, "--dry-run", "--json", code=1).document["damaged"] == 1
    done = tutti("import", bad, root, "--capacity-bytes", CAPACITY, "--json", code=1).document
    assert (done["imported"], done["damaged"]) == (5, 1)
    tutti("verify", root)
    assert sorted(loaded(owning, root, keys)) == ["miss"] + ["right"] * 5


def test_special_files_are_refused_without_a_wait(tutti, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        assert tutti("import", path, tmp_path, code=2).stderr.count("\n") == 1


def test_random_bytes_are_never_more_than_refused(tmp_path, archive):
    """Whatever follows a right head is refused by an ArchiveError and nothing else."""
    whole = archive.read_bytes()
    length = PREFIX.unpack(whole[: PREFIX.size])[2]
    head = whole[: PREFIX.size + length + 16]
    chance = random.Random(11)
    bad = tmp_path / "bad"
    for _ in range(200):
        cut = chance.randrange(len(whole) - len(head))
        tail = whole[len(head) + cut :]
        bad.write_bytes(head + chance.choice([b"CHNK", b"TEND", b""]) + chance.randbytes(cut % 97) + tail)
        with pytest.raises(ArchiveError):
            with ArchiveReader.open(bad) as found:
                found.check()


@given(st.binary(max_size=400), st.booleans(), st.integers(0, 2**32 - 1))
def test_bytes_that_are_no_file_are_refused_and_nothing_else(tmp_path_factory, data, headed, length):
    path = tmp_path_factory.mktemp("fuzz") / "file"
    if headed:
        text = data[: length % (len(data) + 1)]
        prefix = PREFIX.pack(b"TUTTIARC", 1, len(text))
        digest = hashlib.blake2b(prefix + text, digest_size=16).digest()
        data = prefix + text + digest + data[len(text) :]
    path.write_bytes(data)
    with pytest.raises(ArchiveError):
        ArchiveReader.open(path)


NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.sampled_from([1, 2, 4096, 6000, 8192, 16384]))


@given(
    st.fixed_dictionaries(dict.fromkeys(("ranks", "num_layers", "segment_bytes", "chunk_bytes"), NUMBERS)),
    st.lists(NUMBERS, max_size=4),
)
def test_sizes_that_make_no_sense_are_refused(sizes, data_bytes):
    document = {**sizes, "facts": {"model": "m"}, "data_bytes": data_bytes}
    document["namespace"] = Namespace(document["facts"]).digest
    try:
        header = ArchiveHeader.parse(json.dumps(document).encode())
    except ArchiveError:
        return
    geometry = header.geometry()
    assert (geometry.segment_bytes, geometry.chunk_bytes) == (sizes["segment_bytes"], sizes["chunk_bytes"])
    assert header.payload_bytes <= geometry.segment_bytes


def test_of_several_roots_all_are_used(tutti, tmp_path, owning, keys):
    here, there = ([empty(tmp_path / f"{name}{number}") for number in range(2)] for name in ("here", "there"))
    with owning.start(here) as server:
        server.store_chunks(keys)
    file = tmp_path / "file"
    tutti("export", *here, "--to", file)
    tutti("import", file, *there, "--capacity-bytes", CAPACITY)
    assert all((root / NAMESPACE.digest / "rank-0").is_dir() for root in there)
    with owning.start(there) as server:
        assert [server.load_chunk(key) for key in keys] == ["right"] * 6


def make_mixed(root: Path, secret: bytes) -> Namespace:
    """Make a store of two ranks and two kinds of layer; the second chunk has no layer 1 on rank 1."""
    namespace = Namespace({"model": "mixed", "checksum": "blake2b-64"})
    groups = [CacheGroup((0,), 16, 9000), CacheGroup((1,), 16, 3000)]
    geometry = Geometry.of_groups(groups, blocks_per_chunk=1)
    with LocalStore.open([root], namespace, geometry, ranks=2, capacity_bytes=CAPACITY) as store:
        for slot in range(2):
            sums = []
            for rank in range(2):
                (path,) = prepare_files(store.layout, rank).values()
                words = []
                for layer, size in enumerate((9000, 3000)):
                    data = bytearray(hashlib.shake_128(b"%d %d %d" % (slot, rank, layer)).digest(size))
                    with Path(path).open("r+b") as file:
                        file.seek(store.layout.locate(slot, layer)[1])
                        file.write(data + secret)
                    absent = (slot, rank, layer) == (1, 1, 1)
                    words.append(0 if absent else checksum(memoryview(data)))
                sums.append(b"".join(word.to_bytes(8, "little") for word in words))
            store.catalogue.put(Record(b"key %d" % slot, slot, slot, tuple(sums), slot))
        assert store.catalogue.flush(30)
    return namespace


def test_ranks_kinds_of_layers_and_absent_segments_come_through(tutti, tmp_path):
    secret = b"somebody else's"
    digest = make_mixed(tmp_path / "here", secret).digest
    file = tmp_path / "file"
    assert tutti("export", tmp_path / "here", "--to", file, "--json").document["chunks"] == 2
    assert secret not in file.read_bytes(), "what lies behind a segment's data left its store"
    there = empty(tmp_path / "there")
    assert tutti("import", file, there, "--capacity-bytes", CAPACITY, "--json").document["imported"] == 2
    assert tutti("verify", there, "--json").document["stores"][0]["checked"] == 2
    found = {}
    for root in (tmp_path / "here", there):
        with closing(sqlite3.connect(root / digest / CATALOGUE_NAME)) as connection:
            found[root.name] = dict(connection.execute("SELECT key, checksums FROM chunks"))
    assert found["here"] == found["there"]
    again = tmp_path / "again"
    tutti("export", there, "--to", again)
    assert again.read_bytes() == file.read_bytes()
