# SPDX-License-Identifier: Apache-2.0
"""Transfers large enough to bypass the cache, and transfers on several threads at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import kv_kernels_reference as reference
import pytest
import torch

import tutti_kv_kernels as tk

POISON = 0xA5
LARGE = 12 << 20


def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def transfer(
    page_bytes: int, columns: int, total: int, offset: int = 0
) -> tuple[tk.PagedLayout, torch.Tensor]:
    """A layout of about ``total`` bytes and all its blocks in random order, as rows of segments."""
    segments = total // (page_bytes * columns)
    layout = tk.PagedLayout(offset, page_bytes, page_bytes, segments * columns)
    return layout, torch.randperm(layout.num_blocks).view(segments, columns)


# Odd ones: part of a line left over, part of a word left over, targets that streaming stores cannot address.
@pytest.mark.parametrize("page_bytes", [4096, 65536, 18432, 4104, 4100, 333])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_large_round_trip_is_exact(page_bytes: int, offset: int, num_threads: int) -> None:
    columns = max(2, (1 << 20) // page_bytes)
    layout, block_ids = transfer(page_bytes, columns, LARGE, offset)
    pages = random_bytes(layout.end)
    slots = torch.randperm(len(block_ids))
    data_bytes, slot_bytes = columns * page_bytes, columns * page_bytes + 24
    window = torch.full((len(slots) * slot_bytes,), POISON, dtype=torch.uint8)

    checksums = tk.gather(pages, layout, block_ids, window, slots, slot_bytes, num_threads=num_threads)

    packed = window.view(-1, slot_bytes)[slots]
    expected = pages[offset:].view(-1, page_bytes)[block_ids].reshape(len(slots), data_bytes)
    assert packed[:, :data_bytes].equal(expected)
    assert not packed[:, data_bytes:].any()
    assert [tk.checksum(row) for row in expected] == [value % 2**64 for value in checksums.tolist()]

    window[slots[1] * slot_bytes + data_bytes - 1] ^= 1
    restored = torch.full_like(pages, POISON)
    matched = tk.scatter(
        window, slots, slot_bytes, restored, layout, block_ids, checksums, num_threads=num_threads
    )
    assert matched.tolist() == [segment != 1 for segment in range(len(slots))]
    target = pages.clone()
    target[:offset] = POISON
    target[offset:].view(-1, page_bytes)[block_ids[1]] = POISON
    assert restored.equal(target)


# Below and above the length that is copied run by run; whole lines, whole words, and neither.
@pytest.mark.parametrize("run_bytes", [16, 20, 64, 192, 256, 500, 512, 520, 1024, 4100, 6144])
@pytest.mark.parametrize(("gap", "num_threads"), [(0, 1), (64, 2), (24, 1)])
def test_large_strided_round_trip_is_exact(run_bytes: int, gap: int, num_threads: int) -> None:
    """Two heads outside blocks, as in LHBNC: a block is two runs half a cache apart, each of three tokens."""
    blocks, columns = (9 << 20) // (6 * run_bytes) // 8 * 8, 8
    pitch = run_bytes + gap
    pages = random_bytes(2 * blocks * 3 * pitch + 32)
    view = pages[32:].view(2, blocks, 3, pitch)[..., :run_bytes]
    plane = tk.Plane(
        0, 32, 3 * pitch, blocks, run_bytes, (1, 2, 3), (0, blocks * 3 * pitch, pitch), token_dim=2
    )
    cache = tk.PagedCache([pages], [[plane]])
    ids, slots = torch.randperm(blocks).view(-1, columns), torch.randperm(blocks // columns)
    data_bytes, slot_bytes = columns * 6 * run_bytes, columns * 6 * run_bytes + 24
    window = torch.full((len(slots) * slot_bytes,), POISON, dtype=torch.uint8)

    checksums = cache.gather(ids, window, slots, slot_bytes, num_threads=num_threads)

    packed = window.view(-1, slot_bytes)[slots]
    expected = view[:, ids].permute(1, 2, 0, 3, 4).reshape(len(slots), data_bytes)
    assert packed[:, :data_bytes].equal(expected)
    assert not packed[:, data_bytes:].any()
    assert tk.checksum(expected[-1]) == checksums[-1].item() % 2**64
    original = pages.clone()
    pages.fill_(POISON)
    status = cache.scatter(window, slots, slot_bytes, ids, checksums, num_threads=num_threads)
    assert not status.any()
    target = torch.full_like(pages, POISON)
    target[32:].view(2, blocks, 3, pitch)[..., :run_bytes] = original[32:].view(2, blocks, 3, pitch)[
        ..., :run_bytes
    ]
    assert pages.equal(target)


def test_checksum_of_a_large_buffer_equals_the_reference() -> None:
    data = random_bytes((1 << 20) + 5)
    assert tk.checksum(data) == reference.checksum(data.numpy().tobytes())


def test_two_threads_on_disjoint_slots_and_pages() -> None:
    layout, block_ids = transfer(4096, 16, 8 << 20)
    pages, restored = random_bytes(layout.end), torch.zeros(layout.end, dtype=torch.uint8)
    slots = torch.arange(len(block_ids))
    window = torch.zeros_like(pages)
    start = threading.Barrier(2)

    def work(part: slice) -> bool:
        start.wait()
        for _ in range(5):
            mine = (slots[part], block_ids[part])
            checksums = tk.gather(pages, layout, mine[1], window, mine[0], 65536)
            matched = tk.scatter(window, mine[0], 65536, restored, layout, mine[1], checksums)
            if not matched.all():
                return False
        return True

    half = len(slots) // 2
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, [slice(0, half), slice(half, None)]))
    assert restored.equal(pages)


NO_MORE_THREADS = """
import resource, torch
import tutti_kv_kernels as tk

layout = tk.PagedLayout(0, 4096, 4096, 64)
pages = torch.randint(0, 256, (layout.end,), dtype=torch.uint8)
window = torch.zeros_like(pages)
block_ids, slots = torch.arange(64).view(8, 8), torch.arange(8)
checksums = torch.zeros(8, dtype=torch.int64)
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
# Room for small allocations, not for a thread's stack of 8 MiB.
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20),) * 2)
tk.gather_into(pages, layout, block_ids, window, slots, 32768, checksums, num_threads=8)
assert window.equal(pages)
"""


def test_a_transfer_that_gets_no_threads_does_all_the_work_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_MORE_THREADS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_other_python_threads_run_during_a_transfer() -> None:
    """Python sees a window that is half written: impossible while the operator holds the GIL."""
    layout, block_ids = transfer(65536, 8, 128 << 20)
    pages = torch.full((layout.end,), 1, dtype=torch.uint8)
    window = torch.zeros_like(pages)
    seen = window.numpy()
    slots = torch.arange(len(block_ids))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(50):
            window.zero_()
            call = pool.submit(tk.gather, pages, layout, block_ids, window, slots, 8 * 65536)
            while not call.done():
                # Read in this order: the last byte is written after the first.
                if seen[-1] == 0 and seen[0] == 1 and seen[-1] == 0:
                    call.result()
                    return
            call.result()
    pytest.fail("in 50 transfers Python never ran between the first and the last byte")
