# SPDX-License-Identifier: Apache-2.0
"""The example for SGLang's HiCache, against SGLang's own abstract class, configuration and factory.

Its modules of the storage interface are imported from the installed files; only the start-up of its package,
which wants the whole server and a GPU, is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the example needs torch")
for needed in ("numpy", "tutti_runtime", "tutti_kv_kernels"):
    pytest.importorskip(needed, reason="the example needs tutti-engine[local,kernels]")

SGLANG = importlib.util.find_spec("sglang")
if SGLANG is None or not SGLANG.submodule_search_locations:
    pytest.skip("sglang is not installed (pip install --no-deps sglang)", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang_hicache"
PAGE, LAYERS, HEADS, DIM, PAGES = 16, 3, 2, 64, 12
HALF = PAGE * LAYERS * HEADS * DIM * 2  # K or V of a page, in bytes
LAYOUTS = ["page_first", "page_first_direct", "layer_first"]


@pytest.fixture(scope="module")
def sglang():
    """SGLang's modules of the storage interface."""
    package = types.ModuleType("sglang")
    package.__path__ = list(SGLANG.submodule_search_locations)
    before = set(sys.modules)
    sys.modules["sglang"] = package
    sys.path.insert(0, str(EXAMPLE))
    yield types.SimpleNamespace(
        interface=importlib.import_module("sglang.srt.mem_cache.hicache_storage"),
        factory=importlib.import_module("sglang.srt.mem_cache.storage.backend_factory"),
        backend=importlib.import_module("tutti_sglang.backend"),
    )
    sys.path.remove(str(EXAMPLE))
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"sglang", "tutti_sglang"}:
            del sys.modules[name]


class Pool:
    """Host memory of K and V as SGLang's pools lay it out, by the same formulas; MLA has one part a page."""

    def __init__(self, layout, *, mla=False, seed=1):
        self.layout, self.page_size, self.size, self.dtype = layout, PAGE, PAGE * PAGES, torch.bfloat16
        self.halves = 1 if mla else 2
        torch.manual_seed(seed)
        self.kv_buffer = torch.randn(self.halves * self.size * LAYERS * HEADS * DIM).to(self.dtype)
        self.bytes = self.kv_buffer.view(torch.uint8)

    def get_page_buffer_meta(self, indices):
        assert len(indices) % PAGE == 0
        row = HEADS * DIM * 2  # a token of a layer
        parts = LAYERS if self.layout == "layer_first" else 1
        width = row if self.layout == "layer_first" else row * LAYERS
        addresses = [
            self.kv_buffer.data_ptr()
            + half * self.size * LAYERS * row
            + part * self.size * row
            + int(first) * width
            for first in indices[::PAGE]
            for part in range(parts)
            for half in range(self.halves)
        ]
        return addresses, [PAGE * width] * len(addresses)

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.halves * PAGE * LAYERS * HEADS * DIM, dtype=self.dtype)

    def page(self, number):
        """The bytes of a page, in whatever order its parts are."""
        addresses, sizes = self.get_page_buffer_meta(indices(number))
        start = self.kv_buffer.data_ptr()
        return b"".join(
            self.bytes[at - start : at - start + size].numpy().tobytes() for at, size in zip(addresses, sizes)
        )


def indices(*pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def config(sglang, root, *, mla=False, rank=0, ranks=1, **extra):
    settings = {
        "backend_name": "tutti",
        "module_path": "tutti_sglang.backend",
        "class_name": "TuttiHiCache",
        "interface_v1": 1,
        "capacity_bytes": 64 << 20,
        "root": str(root),
        "staging_bytes": 1 << 20,
    }
    return sglang.interface.HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="a/model",
        extra_config=settings | extra,
    )


@pytest.fixture
def start(sglang, tmp_path):
    """Start storages as SGLang does, through its own factory; they are closed at the end."""
    running = []

    def make(pool, **options):
        settings = config(sglang, options.pop("root", tmp_path / "cache"), **options)
        storage = sglang.factory.StorageBackendFactory.create_backend("dynamic", settings, pool)
        running.append(storage)
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        return storage

    yield make
    for storage in running:
        storage.close()


def keys(count, name="page"):
    return [f"{name}-{number:04}" for number in range(count)]


@pytest.mark.parametrize("mla", [False, True], ids=["mha", "mla"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_are_read_in_place_after_a_restart(start, layout, mla):
    pool = Pool(layout, mla=mla)
    storage = start(pool, mla=mla)
    assert storage.batch_exists(keys(3)) == 0
    assert storage.batch_set_v1(keys(3), indices(7, 0, 11)) == [True] * 3
    wanted = [pool.page(number) for number in (7, 0, 11)]
    storage.close()

    fresh = Pool(layout, mla=mla, seed=2)
    others = {number: fresh.page(number) for number in (0, 1, 4, 5, 6, 7, 8, 9, 10, 11)}
    storage = start(fresh, mla=mla)
    assert storage.batch_exists(keys(3)) == 3 and all(map(storage.exists, keys(3)))
    assert storage.batch_get_v1(keys(3), indices(3, 2, 11)) == [True] * 3
    assert [fresh.page(number) for number in (3, 2, 11)] == wanted
    assert {number: fresh.page(number) for number in others if number != 11} == {
        number: page for number, page in others.items() if number != 11
    }


def test_what_is_missing_is_missing_and_the_rest_is_there(start):
    pool = Pool("page_first")
    storage = start(pool)
    names = keys(4)
    assert storage.batch_set_v1([names[0], names[1], names[3]], indices(0, 1, 3)) == [True] * 3
    assert storage.batch_exists(names) == 2, "a prefix ends at the first page that is not there"
    assert not storage.exists(names[2]) and storage.exists(names[3])
    before = pool.page(10)
    assert storage.batch_get_v1(names, indices(8, 9, 10, 11)) == [True, True, False, True]
    assert pool.page(8) == pool.page(0) and pool.page(11) == pool.page(3)
    assert pool.page(10) == before
    assert storage.batch_get_v1(["nobody"], indices(5)) == [False]


def test_a_page_is_stored_once(start):
    pool = Pool("page_first")
    storage = start(pool)
    first = pool.page(0)
    assert storage.batch_set_v1(["one", "one"], indices(0, 1)) == [True, True]
    assert storage.batch_set_v1(["one"], indices(2)) == [True]
    assert storage.batch_get_v1(["one"], indices(5)) == [True]
    assert pool.page(5) == first


def test_a_page_goes_before_the_one_that_it_goes_on_from(start, sglang):
    pool = Pool("page_first")
    # Room for some pages: those that go first are ends of prompts.
    storage = start(pool, capacity_bytes=5 << 20)
    extra = sglang.interface.HiCacheStorageExtraInfo
    assert storage.batch_set_v1(["a0"], indices(0), extra(prefix_keys=[])) == [True]
    assert storage.batch_set_v1(["a1"], indices(1), extra(prefix_keys=["a0"])) == [True]
    for number in range(400):
        storage.batch_set_v1([f"x{number}"], indices(2))
        assert storage.batch_exists(["a0"]) >= storage.batch_exists(["a1"])


def test_a_prefix_that_is_not_stored_is_no_reason_to_refuse_a_page(start, sglang):
    storage = start(Pool("page_first"))
    extra = sglang.interface.HiCacheStorageExtraInfo(prefix_keys=["b0"])
    assert storage.batch_set_v1(["b1"], indices(3), extra) == [True]


def test_a_damaged_page_is_a_miss_and_not_one_byte_of_it_arrives(start, tmp_path):
    pool = Pool("page_first")
    storage = start(pool)
    storage.batch_set_v1(keys(2), indices(0, 1))
    storage.close()
    (segments,) = (tmp_path / "cache").glob("*/rank-0/0.seg")
    with segments.open("r+b") as file:
        data = bytearray(file.read())
        at = bytes(data).index(pool.page(0)[:HALF])
        data[at + 5] ^= 1
        file.seek(0)
        file.write(data)
    storage = start(pool)
    before = pool.page(8)
    assert storage.batch_get_v1(keys(2), indices(8, 9)) == [False, True]
    half = len(before) // 2
    assert pool.page(8)[:half] == before[:half], "the part that does not verify is not written"
    assert not storage.exists(keys(1)[0])
    assert storage.batch_set_v1(keys(1), indices(0)) == [True], "stored anew"


def test_values_in_tensors(start):
    pool = Pool("page_first")
    storage = start(pool, interface_v1=0)
    pages = [torch.randn(2 * PAGE * LAYERS * HEADS * DIM).to(pool.dtype) for _ in range(20)]
    assert storage.batch_set(keys(20), pages)
    assert storage.set("single", pages[4])
    assert storage.batch_exists(keys(21)) == 20
    targets = [pool.get_dummy_flat_data_page() for _ in range(21)]
    found = storage.batch_get(keys(21), targets)
    assert [each is None for each in found] == [False] * 20 + [True]
    assert all(torch.equal(each, page) for each, page in zip(found, pages))
    assert all(each is target for each, target in zip(found[:20], targets))
    assert torch.equal(storage.get("single"), pages[4])
    assert storage.get("nobody") is None
    with pytest.raises(ValueError, match="interface_v1"):
        storage.batch_get_v1(keys(1), indices(0))
    with pytest.raises(ValueError, match="a page has"):
        storage.set("short", pages[0][:5])


def test_pages_and_tensors_of_one_store_are_the_same(start):
    pool = Pool("page_first")
    storage = start(pool)
    storage.batch_set_v1(["one"], indices(3))
    assert storage.get("one").view(torch.uint8).numpy().tobytes() == pool.page(3)
    assert storage.set("two", storage.get("one"))
    assert storage.batch_get_v1(["two"], indices(4)) == [True] and pool.page(4) == pool.page(3)


def test_ranks_have_stores_of_their_own(start):
    pools = [Pool("page_first", seed=rank) for rank in range(2)]
    ranks = [start(pool, rank=rank, ranks=2) for rank, pool in enumerate(pools)]
    assert ranks[0].batch_set_v1(keys(2), indices(0, 1)) == [True, True]
    assert ranks[1].batch_exists(keys(2)) == 0
    assert ranks[1].batch_set_v1(keys(2), indices(0, 1)) == [True, True]
    for rank, pool in zip(ranks, pools):
        assert rank.batch_get_v1(keys(1), indices(9)) == [True] and pool.page(9) == pool.page(0)


def test_ranks_with_the_same_pages_read_what_the_first_one_stores(start, sglang, monkeypatch):
    monkeypatch.setattr(sglang.backend, "LOOK_AGAIN_SECONDS", 0.0)
    writer_pool, reader_pool = Pool("page_first", mla=True), Pool("page_first", mla=True, seed=5)
    reader = start(reader_pool, mla=True, rank=1, ranks=2)
    assert reader.batch_exists(keys(2)) == 0, "there is no store yet"
    writer = start(writer_pool, mla=True, rank=0, ranks=2)
    assert writer.batch_set_v1(keys(2), indices(0, 1)) == [True, True]
    writer.close()  # what is committed is in the catalogue; a running writer's shows within seconds
    assert reader.batch_exists(keys(2)) == 2
    assert reader.batch_get_v1(keys(2), indices(4, 5)) == [True, True]
    assert [reader_pool.page(4), reader_pool.page(5)] == [writer_pool.page(0), writer_pool.page(1)]
    assert reader.batch_set_v1(keys(1, "own"), indices(0)) == [False]


def test_threads_that_store_and_read_at_a_time(start):
    pool = Pool("page_first")
    storage = start(pool)
    storage.batch_set_v1(keys(4, "read"), indices(0, 1, 2, 3))
    wrong = []

    def read():
        for _ in range(30):
            if storage.batch_get_v1(keys(4, "read"), indices(8, 9, 10, 11)) != [True] * 4:
                wrong.append("read")

    def store():
        for number in range(30):
            if storage.batch_set_v1([f"written-{number}"], indices(5)) != [True]:
                wrong.append(number)

    threads = [threading.Thread(target=each) for each in (read, store)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [pool.page(number) for number in (8, 9, 10, 11)] == [pool.page(number) for number in range(4)]


def test_another_model_layout_or_identity_starts_cold(start, tmp_path):
    storage = start(Pool("page_first"))
    storage.batch_set_v1(keys(1), indices(0))
    storage.close()
    for pool, extra in (
        (Pool("page_first_direct"), {}),
        (Pool("page_first"), {"identity": "other weights"}),
        (Pool("page_first"), {"ranks": 2}),
        (Pool("page_first"), {"interface_v1": 0}),
    ):
        other = start(pool, **extra)
        assert not other.exists(keys(1)[0])
        other.close()
    assert start(Pool("page_first")).exists(keys(1)[0])


def test_a_second_server_is_refused_with_the_owner(start):
    import tutti_engine

    start(Pool("page_first"))
    with pytest.raises(tutti_engine.StoreBusyError, match="is in use by"):
        start(Pool("page_first"))


def test_a_failure_is_a_miss_and_no_exception_in_sglangs_threads(start, caplog):
    pool = Pool("page_first")
    storage = start(pool)
    storage.batch_set_v1(keys(1), indices(0))

    def fail(*_):
        raise OSError("made up")

    storage._engine.planner.lookup_prefix = fail
    assert storage.batch_exists(keys(1)) == 0
    assert storage.batch_get_v1(keys(1), indices(5)) == [False]
    assert storage.batch_set_v1(keys(1), indices(0)) == [False]
    assert storage.get("one") is None
    assert caplog.text.count("the server goes on") == 4


def test_a_drive_that_hangs_costs_a_miss_and_its_late_bytes_reach_no_page(start, sglang, monkeypatch):
    from tutti_engine.testing.fakes import HangingBackend

    hung = []

    def hanging(layout, rank):
        hung.append(HangingBackend(local(layout, rank)))
        return hung[-1]

    local = sglang.backend.LocalStoreBackend
    storage = start(Pool("page_first"))
    assert storage.batch_set_v1(keys(2), indices(0, 1)) == [True, True]
    storage.close()
    monkeypatch.setattr(sglang.backend, "LocalStoreBackend", hanging)
    monkeypatch.setattr(sglang.backend, "SECONDS", 0.2)
    pool = Pool("page_first", seed=3)
    storage = start(pool)
    before = [pool.page(8), pool.page(9)]
    assert storage.batch_get_v1(keys(2), indices(8, 9)) == [False, False]
    hung[0].heal()
    assert storage._engine.wait_idle(time.monotonic() + 30)
    assert [pool.page(8), pool.page(9)] == before


def test_clear_forgets_every_page(start):
    storage = start(Pool("page_first"))
    storage.batch_set_v1(keys(3), indices(0, 1, 2))
    storage.clear()
    assert storage.batch_exists(keys(3)) == 0
    storage.close()
    assert start(Pool("page_first")).batch_exists(keys(3)) == 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"capacity_byte": 1}, "unknown setting 'capacity_byte'"),
        ({"capacity_bytes": "much"}, "capacity_bytes must be"),
        ({"replicas": 0}, "replicas is 0"),
    ],
)
def test_a_wrong_setting_is_named(start, extra, says):
    with pytest.raises(ValueError, match=says):
        start(Pool("page_first"), **extra)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (indices(0)[:5], "but 5 indices"),
        (indices(0) + 3, "index 3"),
        (indices(PAGES), f"index {PAGE * PAGES}"),
    ],
)
def test_indices_that_are_no_pages_are_refused(start, wrong, says):
    storage = start(Pool("page_first"))
    with pytest.raises(ValueError, match=says):
        storage.batch_get_v1(keys(1), wrong)


def test_no_method_of_the_interface_is_left_open(sglang):
    assert issubclass(sglang.backend.TuttiHiCache, sglang.interface.HiCacheStorage)
    assert not sglang.backend.TuttiHiCache.__abstractmethods__


def test_a_read_does_not_wait_for_somebody_elses_write(start, monkeypatch):
    pool = Pool("page_first")
    storage = start(pool)
    assert storage.batch_set_v1(keys(1), indices(0)) == [True]
    backend = storage._engine.executor._backend
    under_way, go_on, write = threading.Event(), threading.Event(), backend.write_segments

    def hanging(*arguments, **named):
        under_way.set()
        assert go_on.wait(60)
        return write(*arguments, **named)

    monkeypatch.setattr(backend, "write_segments", hanging)
    # What a reader would wait for is over only when no store is under way.
    monkeypatch.setattr(storage._engine, "wait_idle", lambda deadline: go_on.wait(60))
    writer = threading.Thread(target=storage.batch_set_v1, args=(keys(1, "other"), indices(1)))
    found = []
    reader = threading.Thread(target=lambda: found.extend(storage.batch_get_v1(keys(1), indices(2))))
    writer.start()
    assert under_way.wait(30)
    reader.start()
    reader.join(20)
    done = not reader.is_alive()
    go_on.set()
    writer.join()
    reader.join()
    assert done and found == [True] and pool.page(2) == pool.page(0)
