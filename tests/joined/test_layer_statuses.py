# SPDX-License-Identifier: Apache-2.0
"""What teams of tutti-runtime say of a layer's reads is what a scatter of tutti-kv-kernels goes by.

The words are never copied or turned: the scatter reads them where the teams, or the kernel on a GPU, wrote
them. A failed read leaves the right bytes in the window here, so that no checksum could tell.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tk = pytest.importorskip("tutti_kv_kernels")
nvme_layers = pytest.importorskip("tutti_runtime.nvme_layers")
testing = pytest.importorskip("tutti_runtime.testing")

PAGE, BLOCKS, SEGMENTS, LOST = 4096, 3, 12, 5
SLOT = BLOCKS * PAGE
SPACE = 1 << 20
UNTOUCHED = 0xEE


class Words:
    """Numbers at an address, of 32 bits; on a GPU as CUDA's array interface, version 3, names them."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": "<i4",
            "version": 3,
        }


def words(address: int, count: int, device: str) -> Any:
    if device == "cuda":
        return torch.as_tensor(Words(address, count), device=device)
    return torch.frombuffer((ctypes.c_int32 * count).from_address(address), dtype=torch.int32)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device is here")
        if why_not := nvme_layers.missing_kernel():
            pytest.skip(why_not)
        if not tk.has_cuda_kernels():
            pytest.skip("these kernels were built for the CPU only")
    return request.param


@pytest.fixture
def drive(device):
    """Layers on one soft controller, and its faults."""
    control = testing.SoftNvmeControl()
    place = {"device": 0} if device == "cuda" else {}
    spec = {"transport": "soft", "name": "disk", "control": control, "memory_bytes": SPACE} | place
    layers = nvme_layers.NvmeLayers(controllers=[spec], execution=device)
    layers.add_place(0, 1, [(0, 0, SPACE // 512)])
    yield layers, control
    control.heal()
    layers.stop()
    assert control.violations() == []


def test_a_slice_that_was_not_read_is_not_scattered(device, drive):
    layers, control = drive
    generator = torch.Generator().manual_seed(3)
    pool = torch.randint(0, 256, (SEGMENTS * BLOCKS, PAGE), dtype=torch.uint8, generator=generator)
    pool = pool.to(device)
    before = pool.clone()
    window = torch.zeros(SEGMENTS * SLOT, dtype=torch.uint8, device=device)
    pages = tk.PagedLayout(storage_offset=0, block_stride=PAGE, page_bytes=PAGE, num_blocks=len(pool))
    cache = tk.PagedCache.from_layouts({"layer": (pool, pages)})
    ids = torch.randperm(len(pool), generator=generator).view(SEGMENTS, BLOCKS).to(device)
    slots = torch.arange(SEGMENTS, device=device)
    checksums = cache.gather(ids, window, slots, SLOT, layers=0)

    kind = {} if device == "cpu" else {"kind": "device", "device": 0}
    if device == "cuda":
        torch.cuda.synchronize()
    number = layers.add_window(window.data_ptr(), window.numel(), **kind)
    slices = [(0, 0, number, n * SLOT, n * SLOT, SLOT) for n in range(SEGMENTS)]
    write, read = (layers.add_layer(direction, slices) for direction in ("write", "read"))
    statuses = words(layers.device_statuses(read), SEGMENTS, device)

    def load() -> list[int]:
        """Read and scatter; return what the scatter says."""
        pool.fill_(UNTOUCHED)
        if device == "cuda":
            torch.cuda.synchronize()
        assert layers.wait(layers.submit(read), 60)
        said = cache.scatter(window, slots, SLOT, ids, checksums, layers=0, read_status=statuses)
        return said.tolist()

    assert layers.wait(layers.submit(write), 60)
    assert not layers.statuses(write).any()
    window.view(SEGMENTS, SLOT)[[n for n in range(SEGMENTS) if n != LOST]] = 0
    first = LOST * SLOT // 512
    control.fail("status", first_lba=first, last_lba=first, status=0x281)
    expected = [tk.ScatterStatus.OK] * SEGMENTS
    expected[LOST] = tk.ScatterStatus.NOT_READ
    assert load() == expected
    lost = ids[LOST]
    assert (pool[lost] == UNTOUCHED).all()
    assert [torch.equal(pool[each], before[each]) for each in ids] == [n != LOST for n in range(SEGMENTS)]

    assert load() == [tk.ScatterStatus.OK] * SEGMENTS
    assert torch.equal(pool, before)
