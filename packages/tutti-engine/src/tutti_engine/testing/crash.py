# SPDX-License-Identifier: Apache-2.0
"""Kills a storing process again and again and looks at what is left: `python -m tutti_engine.testing.crash`.

Half of the kills come by a timer, the others at a chosen system call that changes the store: every write,
sync, cut, rename and removal is a candidate, with the process ending before, after or in the middle of it,
and half of those with the page cache lost as in a power cut. After each one another process opens the store
and reads every chunk that it shows. Counted are:

- wrong bytes: a chunk that verifies and is not what was stored under its key, or that does not verify;
- start failures: an opening that raises, or that has to give up the catalogue;
- lost chunks: those that were confirmed durable, not evicted since, and are not there.

All must be 0. Needs a C compiler and `tutti-runtime`; nothing but Linux is supported.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import logging
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tutti_engine.backend import SegmentBatch
from tutti_engine.catalogue import mirror as catalogue_mirror
from tutti_engine.catalogue import writer as catalogue_writer
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.roots import absolute_roots
from tutti_engine.testing.window import HostWindow

__all__ = ["build_shim", "run"]

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=1, page_bytes=16 * 1024)
CHUNKS = 24
NAMESPACE = Namespace({"test": "crash points"})
POINTS_OF_A_ROOT = 40
"""Crashes that one store goes through before the next one begins empty."""

SHIM = "TUTTI_CRASH_SHIM"


def build_shim(directory: Path) -> Path:
    """Compile the preloaded library and return its path. Raises subprocess.CalledProcessError."""
    source, library = Path(__file__).with_name("crash_shim.c"), directory / "crash_shim.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def content(key: bytes, layer: int) -> bytes:
    """Return what is stored under a key."""
    return hashlib.shake_128(key + bytes([layer])).digest(GEOMETRY.segment_bytes)


def checksums(segments: list[bytes]) -> bytes:
    """Return the checksums of a chunk."""
    return b"".join(hashlib.blake2b(each, digest_size=8).digest() for each in segments)


class Session:
    """An open store with its backend."""

    def __init__(self, root: Path) -> None:
        import tutti_runtime
        from tutti_engine.backends.local import LocalStoreBackend

        capacity = bytes_needed(CHUNKS, geometry=GEOMETRY, ranks=1, roots=1) + (1 << 20)
        self.store = LocalStore.open([root], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=capacity)
        # The thread pool's calls can be intercepted, those of io_uring cannot.
        self.runtime = tutti_runtime.make_file_runtime(data_path="posix", threads=2)
        self.backend = LocalStoreBackend(self.store.layout, 0, runtime=self.runtime)
        self.window = HostWindow(GEOMETRY.num_layers, GEOMETRY.segment_bytes)
        self.backend.bind_staging(self.window)

    def move(self, slot: int, *, write: bool) -> bool:
        layers = range(GEOMETRY.num_layers)
        batch = SegmentBatch([slot] * len(layers), layers, layers)
        handle = (self.backend.write_segments if write else self.backend.read_segments)(batch)
        return handle.wait(time.monotonic() + 60) and not any(handle.status())

    def close(self) -> None:
        self.backend.shutdown()
        self.runtime.shutdown(5)
        self.store.close()


def set_when_told(event: threading.Event) -> Callable[[object], None]:
    """Return a function that sets an event, whatever it is told."""
    return lambda slots: event.set()


def store_for_ever(root: Path, say: Callable[[str], None]) -> None:
    """Evict, wait for it, write, put, and now and then confirm or open the store anew; tell each step."""
    chance = random.Random()
    while True:
        session = Session(root)
        store = session.store
        where = {record.slot: record.key for record in store.records}
        generation = max((record.generation for record in store.records), default=0)
        for _ in range(chance.randint(3, 40)):
            slot = chance.randrange(store.layout.num_chunks)
            if slot in where:
                say(f"evict {where.pop(slot).hex()}")
                removed = threading.Event()
                store.catalogue.remove([slot], set_when_told(removed))
                removed.wait(60)
            key = chance.randbytes(16)
            segments = [content(key, layer) for layer in range(GEOMETRY.num_layers)]
            for layer, segment in enumerate(segments):
                session.window.slot(layer)[:] = segment
            if not session.move(slot, write=True):
                continue
            generation += 1
            now = int(time.time())
            store.catalogue.put(Record(key, slot, generation, (checksums(segments),), now))
            store.catalogue.touch(chance.sample(list(where.values()), min(2, len(where))))
            where[slot] = key
            if chance.random() < 0.4 and store.catalogue.flush(60):
                say("durable " + " ".join(each.hex() for each in where.values()))
        session.close()


def examine(root: Path, say: Callable[[str], None]) -> None:
    """Open the store and tell each chunk that it shows and whether its bytes are right."""
    session = Session(root)
    for record in session.store.records:
        moved = session.move(record.slot, write=False)
        segments = [bytes(session.window.slot(layer)) for layer in range(GEOMETRY.num_layers)]
        wanted = [content(record.key, layer) for layer in range(GEOMETRY.num_layers)]
        right = moved and segments == wanted and checksums(segments) == record.checksums[0]
        say(f"{'right' if right else 'wrong'} {record.key.hex()}")
    session.close()
    say("opened")


def in_child(function: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Run a function in a forked process; return its pid and a descriptor to read what it says."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(reader)
    code = 1
    with suppress(BaseException):
        logging.basicConfig(
            stream=os.fdopen(os.dup(writer), "w"), level=logging.WARNING, format="warning %(message)s"
        )
        function(lambda text: void(os.write(writer, text.encode() + b"\n")))
        code = 0
    os._exit(code)


def void(_: object) -> None:
    """Nothing."""


def read_until(reader: int, deadline: float) -> bytes:
    """Return what comes until the other end closes or the deadline passes."""
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        some = os.read(reader, 1 << 16)
        if not some:
            break
        said += some
    return said


class Ledger:
    """What must be in the store, from what the storing processes said."""

    def __init__(self) -> None:
        self.durable: set[str] = set()

    def take(self, said: bytes) -> None:
        """Go through the lines of one process. A last line that was cut off counts as far as it is sure."""
        for line in said.decode().split("\n"):
            what, *keys = line.split(" ")
            if what == "evict":
                self.durable.difference_update(keys)
            elif what == "durable":
                self.durable.update(key for key in keys if len(key) == 32)


def crash_once(root: Path, chance: random.Random, calls: int, by_timer: bool) -> tuple[bytes, bool]:
    """Let a process store until it is killed; return what it said, and whether its call was reached."""
    library = ctypes.CDLL(os.environ[SHIM])
    at, how, lose = chance.randint(1, calls), chance.randrange(3), chance.randrange(2)
    if by_timer:
        at = lose = 0

    def work(say: Callable[[str], None]) -> None:
        # Calls are matched by the paths that the store itself uses.
        whose = os.fsencode(absolute_roots([root])[0])
        library.tutti_crash_arm(whose, ctypes.c_long(at), how, lose, chance.randrange(1 << 31))
        store_for_ever(root, say)

    pid, reader = in_child(work)
    try:
        # By the timer: from the middle of the opening to some dozens of stores later.
        deadline = time.monotonic() + (chance.uniform(0.002, 0.25) if by_timer else 60)
        said = read_until(reader, deadline)
        reached = by_timer or time.monotonic() < deadline
        os.kill(pid, signal.SIGKILL)
        said += read_until(reader, time.monotonic() + 60)
    finally:
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"the storing process ended by itself: {said.decode()[-2000:]}")
    return said, reached


def look(root: Path) -> tuple[set[str], list[str], list[str]]:
    """Return the keys of right chunks, those of wrong ones, and complaints of an opening."""
    pid, reader = in_child(lambda say: examine(root, say))
    try:
        lines = read_until(reader, time.monotonic() + 60).decode().splitlines()
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    words = [line.partition(" ") for line in lines]
    right = {key for word, _, key in words if word == "right"}
    wrong = [key for word, _, key in words if word == "wrong"]
    complaints = [line for line in lines if line.split(" ")[0] not in ("right", "wrong", "opened")]
    return right, wrong, complaints if "opened" in lines else [*complaints, "it could not be opened"]


def run(points: int, *, seed: int, directory: Path, progress: bool = False) -> dict[str, Any]:
    """Go through crash points and return the counts. Needs the shim preloaded: see ``main``."""
    # More commits in less time, and a table of columns however small the store is.
    catalogue_writer.COMMIT_INTERVAL = 0.002
    catalogue_mirror.MIN_SLOTS = 1
    catalogue_mirror.SYNC_CHANGES = 6
    catalogue_mirror.BUILD_SLOTS = 5
    chance = random.Random(seed)
    result: dict[str, Any] = {"seed": seed, "points": 0, "chunks_seen": 0, "confirmed": 0, "lost": 0}
    result["not_reached"] = 0
    result |= {"wrong": [], "start_failures": []}
    ledger, root = Ledger(), directory
    for point in range(points):
        if point % POINTS_OF_A_ROOT == 0:
            shutil.rmtree(root, ignore_errors=True)
            root, ledger = directory / f"store-{point}", Ledger()
        said, reached = crash_once(root, chance, calls=chance.choice([30, 120, 500]), by_timer=point % 2 == 0)
        ledger.take(said)
        right, wrong, complaints = look(root)
        result["points"] += 1
        result["not_reached"] += not reached
        result["chunks_seen"] += len(right)
        result["confirmed"] += len(ledger.durable)
        result["lost"] += len(ledger.durable - right)
        result["wrong"] += [f"point {point}: {key}" for key in wrong]
        result["start_failures"] += [f"point {point}: {line}" for line in complaints]
        ledger.durable &= right
        if progress and (point + 1) % 50 == 0:
            told = {name: len(value) if isinstance(value, list) else value for name, value in result.items()}
            print(told, file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Crash points of the local store")
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--directory", type=Path, help="where stores are made; default: a temporary directory"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        if SHIM not in os.environ:
            library = str(build_shim(directory))
            environment = {**os.environ, SHIM: library, "LD_PRELOAD": library}
            environment["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
            command = [sys.executable, "-m", "tutti_engine.testing.crash", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
        seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
        result = run(arguments.points, seed=seed, directory=directory / "roots", progress=True)
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(result["wrong"] or result["start_failures"] or result["lost"]))


if __name__ == "__main__":
    sys.exit(main())
