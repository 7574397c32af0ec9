# SPDX-License-Identifier: Apache-2.0
"""The mover for pages on a CUDA device that is really there."""

from __future__ import annotations

import time
from array import array

import pytest

from tutti_engine import ChunkTransfer, ExecutionSettings, Geometry, LoadPlan, StorePlan
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.execution.executor import Executor
from tutti_engine.mover import BackgroundMover

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("tutti_kv_kernels")

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=12288)
BLOCKS = 64
SECONDS = 60.0
CYCLES = 200_000_000
"""Some tenths of a second of a GPU."""


@pytest.fixture(params=[0, 1])
def device(request):
    if request.param >= torch.cuda.device_count():
        pytest.skip(f"this test is for device {request.param}; there are {torch.cuda.device_count()}")
    return torch.device("cuda", request.param)


class Server:
    """Pages on a device, and an executor for them."""

    def __init__(self, device):
        from tutti_engine.movers.device import DeviceMover

        self.device = device
        shape = (GEOMETRY.num_layers, BLOCKS, GEOMETRY.page_bytes)
        self.pages = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        layout = kernels.PagedLayout(0, GEOMETRY.page_bytes, GEOMETRY.page_bytes, BLOCKS)
        self.storages = [each.clone() for each in self.pages]
        layers = {str(n): (pages, layout) for n, pages in enumerate(self.storages)}
        self.mover = DeviceMover(kernels.PagedCache.from_layouts(layers))
        self.block_ids = {pair: torch.tensor(pair, device=device) for pair in ((5, 9), (20, 21))}
        self.backend = MemoryBackend(
            num_layers=GEOMETRY.num_layers, segment_bytes=GEOMETRY.segment_bytes, num_chunks=64
        )
        bank = 8 * GEOMETRY.chunk_bytes
        settings = ExecutionSettings(load_bank_bytes=bank, store_bank_bytes=bank)
        self.executor = Executor(GEOMETRY, self.backend, self.mover, settings)
        self.plans = 0

    def store(self, *blocks):
        self.plans += 1
        transfers = [ChunkTransfer(b"k", chunk, (tuple(each),)) for chunk, each in enumerate(blocks)]
        self.executor.store(StorePlan(self.plans, tuple(transfers)))

    def load(self, sums, *blocks):
        self.plans += 1
        transfers = [
            ChunkTransfer(b"k", chunk, (tuple(each),), (sums[chunk],)) for chunk, each in enumerate(blocks)
        ]
        return self.executor.load(LoadPlan(self.plans, tuple(transfers)))

    def write(self, blocks, value):
        """Have the device write a value all over some blocks; does not wait for it, except the first time."""
        for layer in self.storages:
            layer.index_fill_(0, self.block_ids[blocks], value)

    def results(self):
        assert self.executor.wait_idle(time.monotonic() + SECONDS)
        return self.executor.take_results()

    def content(self, *blocks):
        torch.cuda.synchronize(self.device)
        return torch.stack([pages[list(blocks)] for pages in self.storages]).cpu()


@pytest.fixture
def server(device):
    made = Server(device)
    yield made
    assert made.executor.shutdown(time.monotonic() + SECONDS)


def test_it_works_in_the_background(server):
    assert isinstance(server.mover, BackgroundMover)


def test_what_was_stored_comes_back_to_other_blocks(server):
    before = server.content(5, 9, 40, 2)
    server.store([5, 9], [40, 2])
    (stored,) = server.results()
    assert None not in stored.checksums
    transfer = server.load(stored.checksums, [20, 21], [22, 63])
    assert transfer.wait(time.monotonic() + SECONDS) and transfer.ok
    assert torch.equal(server.content(20, 21, 22, 63), before)


def test_the_checksums_are_those_of_the_cpu(server):
    sums = server.mover.gather((1,), [[3, 4]], array("q", [2]))
    expected = server.content(3, 4)[1].reshape(-1)
    assert list(sums) == [kernels.checksum(expected)]
    slot = server.executor.window.slot(2)
    assert bytes(slot[: len(expected)]) == expected.numpy().tobytes() and not any(slot[len(expected) :])


def test_damage_is_found(server):
    server.store([5, 9], [1, 2])
    (stored,) = server.results()
    wrong = (stored.checksums[1], stored.checksums[0])
    assert server.load(wrong, [20, 21], [22, 23]).wait(time.monotonic() + SECONDS)
    (loaded,) = server.results()
    assert loaded.corrupt == (0, 1)


def test_a_block_out_of_range_fails_the_store_and_nothing_else(server):
    server.store([5, BLOCKS + 3], [1, 2])
    (stored,) = server.results()
    assert stored.checksums[0] is None
    server.store([1, 2])
    assert None not in server.results()[0].checksums


def test_a_store_has_what_the_model_wrote_and_not_what_it_writes_next(server):
    with torch.cuda.device(server.device):
        # CUDA loads a kernel when it is first used, and waits for the device then.
        server.write((5, 9), 66)
        torch.cuda._sleep(CYCLES)
        server.write((5, 9), 77)
        written = torch.cuda.Event()
        written.record()
        server.store([5, 9])
        assert not written.query()  # the device was not waited for
        torch.cuda._sleep(CYCLES)
        server.executor.reuse_blocks([5, 9])
        server.write((5, 9), 88)
    (stored,) = server.results()
    if stored.checksums[0] is None:
        return  # taken back before it was copied
    assert server.load(stored.checksums, [20, 21]).wait(time.monotonic() + SECONDS)
    assert (server.content(20, 21) == 77).all()
    assert (server.content(5, 9) == 88).all()


def test_a_load_comes_after_what_the_model_was_asked_for(server):
    before = server.content(5, 9)
    server.store([5, 9])
    (stored,) = server.results()
    with torch.cuda.device(server.device):
        torch.cuda._sleep(CYCLES)
        server.write((20, 21), 99)
        transfer = server.load(stored.checksums, [20, 21])
    assert transfer.wait(time.monotonic() + SECONDS) and transfer.ok
    assert torch.equal(server.content(20, 21), before)
