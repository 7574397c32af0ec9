# SPDX-License-Identifier: Apache-2.0
"""A request's whole transfer, all layers and several chunks with checksums, against torch's operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from gpu_timing import Rotation, alternating_us, on_stream_us

import tutti_kv_kernels as tk

__all__ = ["all_layers", "torch_checksums"]

MIB = 1 << 20
PAGE = 65536
PAGES_PER_SLOT = 4
LAYER_POOL = 96 * MIB
SETS = 4

# tutti64-1's factors as int64, and the low half of a word: torch shifts keep the sign.
_INDEX_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_FACTOR = 0xD6E8FEB86659FD93 - (1 << 64)
_LENGTH_FACTOR = 0xA0761D6478BD642F - (1 << 64)
_LOW_HALF = (1 << 32) - 1


def torch_checksums(words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The checksum tutti64-1 of each row of int64 ``[n, words]``, by torch's operators, one pass each."""
    product = (words ^ positions).mul_(_MIX_FACTOR)
    product ^= (product >> 32).bitwise_and_(_LOW_HALF)
    hashed = product.sum(1).add_(_as_signed(words.shape[1] * 8 * _LENGTH_FACTOR))
    hashed ^= (hashed >> 32) & _LOW_HALF
    hashed *= _MIX_FACTOR
    return hashed ^ ((hashed >> 32) & _LOW_HALF)


def _as_signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class Request:
    """A load of ``pages`` random pages of each of ``layers`` layers, whose tensors are separate."""

    def __init__(self, layers: int, pages: int) -> None:
        self.layers, self.pages = layers, pages
        self.bytes = layers * pages * PAGE
        self.tensors = [_random_bytes(LAYER_POOL) for _ in range(layers)]
        planes = [[tk.Plane(i, 0, PAGE, LAYER_POOL // PAGE, PAGE)] for i in range(layers)]
        self.window = _random_bytes(SETS * self.bytes)
        cache = tk.PagedCache(self.tensors, planes)
        self.transfer = tk.DeviceTransfer(cache, self.window, PAGES_PER_SLOT * PAGE, max_segments=65536)
        chunks = pages // PAGES_PER_SLOT
        self.ids = torch.randperm(LAYER_POOL // PAGE, device="cuda")[: SETS * pages].view(SETS, chunks, -1)
        count = layers * chunks
        self.slots = torch.arange(SETS * count, device="cuda").view(SETS, count)
        self.of_layers = torch.arange(layers, device="cuda").repeat_interleave(chunks)
        self.sums = torch.zeros(SETS, count, dtype=torch.int64, device="cuda")
        self.status = torch.zeros(count, dtype=torch.int32, device="cuda")
        self.differs = torch.zeros(count, dtype=torch.bool, device="cuda")
        self.positions = torch.arange(1, PAGES_PER_SLOT * PAGE // 8 + 1, device="cuda") * _INDEX_FACTOR

    def gather(self, i: int, checked: bool) -> None:
        sums = self.sums[i] if checked else None
        self.transfer.gather(self.ids[i], self.slots[i], layers=self.of_layers, checksums=sums)

    def scatter(self, i: int, verify: tk.Verify) -> None:
        expected = None if verify is tk.Verify.NONE else self.sums[i]
        self.transfer.scatter(
            self.ids[i],
            self.slots[i],
            layers=self.of_layers,
            checksums=expected,
            status=self.status,
            verify=verify,
        )

    def packed(self, i: int) -> torch.Tensor:
        words = self.window.view(torch.int64).view(SETS, -1)[i]
        return words.view(self.layers, self.pages, PAGE // 8)

    def torch_gather(self, i: int, checked: bool) -> None:
        """One ``index_select`` a layer, and the checksums of all chunks at once."""
        packed, flat = self.packed(i), self.ids[i].view(-1)
        for layer, tensor in enumerate(self.tensors):
            torch.index_select(tensor.view(torch.int64).view(-1, PAGE // 8), 0, flat, out=packed[layer])
        if checked:
            self.sums[i] = self.torch_sums(i)

    def torch_scatter(self, i: int, checked: bool) -> None:
        packed, flat = self.packed(i), self.ids[i].view(-1)
        if checked:
            torch.ne(self.torch_sums(i), self.sums[i], out=self.differs)
        for layer, tensor in enumerate(self.tensors):
            tensor.view(torch.int64).view(-1, PAGE // 8).index_copy_(0, flat, packed[layer])

    def torch_sums(self, i: int) -> torch.Tensor:
        return torch_checksums(self.packed(i).view(self.sums.shape[1], -1), self.positions)

    def check(self) -> None:
        """Both ways give the same bytes and checksums, or nothing that is timed means anything."""
        for i in range(SETS):
            self.packed(i).zero_()
            self.gather(i, True)
            ours, sums = self.packed(i).clone(), self.sums[i].clone()
            self.packed(i).zero_()
            self.torch_gather(i, True)
            if not (ours.equal(self.packed(i)) and sums.equal(self.sums[i])):
                raise RuntimeError(f"{self.layers} layers: torch's operators and the kernel differ")


def _random_bytes(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")


def all_layers(shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Microseconds of a request's gather and scatter, for pairs of (layers, bytes a layer).

    ``us`` is from captured graphs, ``with host`` on a stream as a server would call it.
    """
    rows = []
    for layers, per_layer in shapes:
        request = Request(layers, per_layer // PAGE)
        request.check()
        turn = Rotation(SETS)
        calls = {
            "gather": partial(request.gather, checked=False),
            "gather, checksum": partial(request.gather, checked=True),
            "index_select": partial(request.torch_gather, checked=False),
            "index_select, checksum": partial(request.torch_gather, checked=True),
            "scatter": partial(request.scatter, verify=tk.Verify.NONE),
            "scatter, fused": partial(request.scatter, verify=tk.Verify.FUSED),
            "scatter, before": partial(request.scatter, verify=tk.Verify.BEFORE),
            "index_copy_": partial(request.torch_scatter, checked=False),
            "index_copy_, checksum": partial(request.torch_scatter, checked=True),
        }
        methods = {name: turn(call) for name, call in calls.items()}
        row = {"layers": layers, "bytes": request.bytes}
        row["us"] = alternating_us(methods, repeats=4, rounds=5)
        row["with host"] = on_stream_us(methods, rounds=5)
        if request.status.any() or request.differs.any():
            raise RuntimeError(f"{layers} layers: a scatter reported a mismatch")
        rows.append(row)
        del request, calls, methods
        torch.cuda.empty_cache()
    return rows
