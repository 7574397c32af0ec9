# SPDX-License-Identifier: Apache-2.0
"""Caches in every form that a server hands over, with an independent statement of what a block's bytes are.

The statement is plain indexing of the server's own tensors (``t[b, 0, n]``): no stride, offset or run appears
in it, so it shares no construction with the package.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import tutti_kv_kernels as tk

__all__ = ["FORMS", "POISON", "Form", "Sample", "Sizes"]

POISON = 0xA5
SCALE_BYTES = 4


@dataclass(frozen=True)
class Sizes:
    """Layers, blocks, tokens a block, heads and content of a cache, and how it lies in memory."""

    L: int = 2
    B: int = 4
    N: int = 4
    H: int = 2
    C: int = 8
    dtype: torch.dtype = torch.bfloat16
    rows: int = 1
    """Kernel blocks in a block; N is a multiple of it."""
    pad: int = 0
    """Values between the entries of a tensor's first axis."""
    offset: int = 0
    """Values before a tensor in its storage."""


Parts = list[torch.Tensor]


@dataclass(frozen=True)
class Form:
    """One way to hand over a cache.

    ``handed`` makes the tensors, ``block`` gives views of a block's parts in packed order, ``token`` those of
    one token of a block.
    """

    name: str
    handed: Callable[[Allocator, Sizes], Any]
    block: Callable[[Any, int, int, Sizes], Parts]
    token: Callable[[Any, int, int, int, Sizes], Parts]
    cache: Callable[[Any, Sizes, str], tk.PagedCache]
    rows: bool = True


class Allocator:
    """Makes tensors over storages that are filled from a seed, or with one byte."""

    def __init__(self, sizes: Sizes, seed: int | None, fill: int = POISON) -> None:
        self._sizes = sizes
        self._random = None if seed is None else random.Random(seed)
        self._fill = fill
        self.storages: list[torch.Tensor] = []

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor whose first axis is padded, from an offset on."""
        dtype = dtype or self._sizes.dtype
        first, inner = shape[0], math.prod(shape[1:])
        count = self._sizes.offset + first * (inner + self._sizes.pad)
        size = count * dtype.itemsize
        if self._random is None:
            raw = torch.full((size,), self._fill, dtype=torch.uint8)
        else:
            raw = torch.frombuffer(bytearray(self._random.randbytes(size)), dtype=torch.uint8)
        self.storages.append(raw)
        values = raw.view(dtype)[self._sizes.offset :]
        return values.view(first, -1)[:, :inner].unflatten(1, shape[1:])


@dataclass
class Sample:
    """A cache of one form. Two samples of equal form, sizes and ids have the same geometry."""

    form: Form
    sizes: Sizes
    ids: str = "blocks"
    seed: int | None = 0
    fill: int = POISON
    cache: tk.PagedCache = field(init=False)

    def __post_init__(self) -> None:
        allocator = Allocator(self.sizes, self.seed, self.fill)
        self.handed = self.form.handed(allocator, self.sizes)
        self.storages = allocator.storages
        self.cache = self.form.cache(self.handed, self.sizes, self.ids)

    @property
    def num_ids(self) -> int:
        return self.sizes.B if self.ids == "blocks" else self.sizes.B * self.sizes.N

    @property
    def tokens_per_id(self) -> int:
        return self.sizes.N if self.ids == "blocks" else 1

    def parts(self, layer: int, identity: int) -> Parts:
        if self.ids == "blocks":
            return self.form.block(self.handed, layer, identity, self.sizes)
        return self.token_parts(layer, identity, 0)

    def token_parts(self, layer: int, identity: int, token: int) -> Parts:
        block, token = (identity, token) if self.ids == "blocks" else divmod(identity, self.sizes.N)
        return self.form.token(self.handed, layer, block, token, self.sizes)

    def packed(self, layer: int, identity: int) -> bytes:
        return b"".join(as_bytes(part) for part in self.parts(layer, identity))

    def copy_tokens(self, source: Sample, layer: int, identity: int, tokens: range) -> None:
        """Copy some tokens of a block from a sample of the same geometry."""
        for token in tokens:
            pairs = zip(
                self.token_parts(layer, identity, token),
                source.token_parts(layer, identity, token),
                strict=True,
            )
            for target, origin in pairs:
                target.view(torch.uint8).copy_(origin.view(torch.uint8))

    def memory(self) -> list[bytes]:
        return [storage.numpy().tobytes() for storage in self.storages]


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _format(
    name: str,
    handed: Callable[[Allocator, Sizes], Any],
    block: Callable[[Any, int, int, Sizes], Parts],
    token: Callable[[Any, int, int, int, Sizes], Parts],
    *,
    rows: bool = False,
) -> Form:
    scale_bytes = SCALE_BYTES if name == "NL_X_NB_BSV_BSS" else None

    def cache(tensors: Any, sizes: Sizes, ids: str) -> tk.PagedCache:
        return tk.PagedCache.from_format(
            name, tensors, num_blocks=sizes.B, block_size=sizes.N, ids=ids, scale_bytes=scale_bytes
        )

    return Form(name, handed, block, token, cache, rows)


def _layers(shape: Callable[[Sizes], tuple[int, ...]]) -> Callable[[Allocator, Sizes], Any]:
    return lambda new, z: [new(*shape(z)) for _ in range(z.L)]


def _two_lists(shape: Callable[[Sizes], tuple[int, ...]]) -> Callable[[Allocator, Sizes], Any]:
    return lambda new, z: [[new(*shape(z)) for _ in range(z.L)] for _ in range(2)]


def _page(tensors: Any, layer: int, block: int, z: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [N, V] and scales [N, S] of an indexer page."""
    page = tensors[layer][block].view(torch.uint8).view(-1)
    split = page.numel() - z.N * SCALE_BYTES
    return page[:split].view(z.N, -1), page[split:].view(z.N, SCALE_BYTES)


_NAMED = [
    _format(
        "NB_NL_TWO_BS_NH_HS",
        lambda new, z: new(z.B, z.L, 2, z.N, z.H, z.C),
        lambda t, i, b, z: [t[b, i]],
        lambda t, i, b, n, z: [t[b, i, 0, n], t[b, i, 1, n]],
    ),
    _format(
        "NL_X_TWO_NB_BS_NH_HS",
        _layers(lambda z: (2, z.B * z.rows, z.N // z.rows, z.H, z.C)),
        lambda t, i, b, z: [t[i][kv, b * z.rows + row] for row in range(z.rows) for kv in range(2)],
        lambda t, i, b, n, z: [
            t[i][kv, b * z.rows + n // (z.N // z.rows), n % (z.N // z.rows)] for kv in (0, 1)
        ],
        rows=True,
    ),
    _format(
        "NL_X_NB_TWO_BS_NH_HS",
        _layers(lambda z: (z.B, 2, z.N, z.H, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, 0, n], t[i][b, 1, n]],
    ),
    _format(
        "NL_X_NB_BS_HS",
        _layers(lambda z: (z.B, z.N, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, n]],
    ),
    _format(
        "TWO_X_NL_X_NBBS_NH_HS",
        _two_lists(lambda z: (z.B * z.N + 3, z.H, z.C)),
        lambda t, i, b, z: [t[kv][i][b * z.N : (b + 1) * z.N] for kv in (0, 1)],
        lambda t, i, b, n, z: [t[kv][i][b * z.N + n] for kv in (0, 1)],
    ),
    _format(
        "NL_X_NBBS_ONE_HS",
        _layers(lambda z: (z.B * z.N, 1, z.C)),
        lambda t, i, b, z: [t[i][b * z.N : (b + 1) * z.N]],
        lambda t, i, b, n, z: [t[i][b * z.N + n]],
    ),
    _format(
        "NL_X_TWO_NB_NH_BS_HS",
        _layers(lambda z: (2, z.B, z.H, z.N, z.C)),
        lambda t, i, b, z: [t[i][0, b], t[i][1, b]],
        lambda t, i, b, n, z: [t[i][0, b, :, n], t[i][1, b, :, n]],
    ),
    _format(
        "NL_X_NB_TWO_NH_BS_HS",
        _layers(lambda z: (z.B, 2, z.H, z.N, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, 0, :, n], t[i][b, 1, :, n]],
    ),
    _format(
        "NB_NL_TWO_NH_BS_HS",
        lambda new, z: new(z.B, z.L, 2, z.H, z.N, z.C),
        lambda t, i, b, z: [t[b, i]],
        lambda t, i, b, n, z: [t[b, i, 0, :, n], t[b, i, 1, :, n]],
    ),
    _format(
        "TWO_X_NL_X_NB_BS_NH_HS",
        _two_lists(lambda z: (z.B, z.N, z.H, z.C)),
        lambda t, i, b, z: [t[0][i][b], t[1][i][b]],
        lambda t, i, b, n, z: [t[0][i][b, n], t[1][i][b, n]],
    ),
    _format(
        "NL_X_NB_NH_BS_TWO_HS",
        _layers(lambda z: (z.B, z.H, z.N, 2, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, :, n]],
    ),
    _format(
        "NL_X_NB_BS_NH_TWO_HS",
        _layers(lambda z: (z.B, z.N, z.H, 2, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, n]],
    ),
    _format(
        "NL_X_NB_NH_BS_CS",
        _layers(lambda z: (z.B * z.rows, z.H, z.N // z.rows, z.C)),
        lambda t, i, b, z: [t[i][b * z.rows + row] for row in range(z.rows)],
        lambda t, i, b, n, z: [t[i][b * z.rows + n // (z.N // z.rows), :, n % (z.N // z.rows)]],
        rows=True,
    ),
    _format(
        "NL_X_NB_BS_NH_CS",
        _layers(lambda z: (z.B, z.N, z.H, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, n]],
    ),
    _format(
        "NL_X_NB_BSV_BSS",
        lambda new, z: [new(z.B, z.N, z.C + SCALE_BYTES, dtype=torch.uint8) for _ in range(z.L)],
        lambda t, i, b, z: list(_page(t, i, b, z)),
        lambda t, i, b, n, z: [part[n] for part in _page(t, i, b, z)],
    ),
    _format(
        "NL_X_TWO_NB_NH_ONE_BS_HS",
        _layers(lambda z: (2, z.B, z.H, 1, z.N, z.C)),
        lambda t, i, b, z: [t[i][0, b], t[i][1, b]],
        lambda t, i, b, n, z: [t[i][0, b, :, 0, n], t[i][1, b, :, 0, n]],
    ),
    _format(
        "NL_X_TWO_X_NB_BS_NH_HS",
        lambda new, z: [(new(z.B, z.N, z.H, z.C), new(z.B, z.N, z.H, z.C)) for _ in range(z.L)],
        lambda t, i, b, z: [t[i][0][b], t[i][1][b]],
        lambda t, i, b, n, z: [t[i][0][b, n], t[i][1][b, n]],
    ),
    _format(
        "NL_X_NP_X_NB_BS_ONE_HS",
        lambda new, z: [tuple(new(z.B, z.N, 1, z.C + width) for width in range(3)) for _ in range(z.L)],
        lambda t, i, b, z: [plane[b] for plane in t[i]],
        lambda t, i, b, n, z: [plane[b, n] for plane in t[i]],
    ),
    _format(
        "NL_X_NB_BS_NH_HS",
        _layers(lambda z: (z.B, z.N, z.H, z.C)),
        lambda t, i, b, z: [t[i][b]],
        lambda t, i, b, n, z: [t[i][b, n]],
    ),
]


def _view(order: str) -> Form:
    """vLLM's views of one tensor in a physical order: logically [B, H, N, C] a layer."""

    def handed(new: Allocator, z: Sizes) -> dict[str, torch.Tensor]:
        lengths = {"L": z.L, "B": z.B * z.rows, "H": z.H, "N": z.N // z.rows, "C": z.C}
        logical = new(*(lengths[letter] for letter in order)).permute([order.index(x) for x in "LBHNC"])
        return {f"layers.{index}": view for index, view in enumerate(logical)}

    def rows_of(t: Any, layer: int, block: int, z: Sizes) -> Iterator[torch.Tensor]:
        for row in range(z.rows):
            yield t[f"layers.{layer}"][block * z.rows + row]

    def block(t: Any, layer: int, number: int, z: Sizes) -> Parts:
        heads_first = order.index("H") < order.index("N")
        return [row if heads_first else row.transpose(0, 1) for row in rows_of(t, layer, number, z)]

    def token(t: Any, layer: int, number: int, n: int, z: Sizes) -> Parts:
        row, inside = divmod(n, z.N // z.rows)
        return [list(rows_of(t, layer, number, z))[row][:, inside]]

    def cache(t: Any, z: Sizes, ids: str) -> tk.PagedCache:
        return tk.PagedCache.from_kv_caches(
            t,
            kv_cache_layout=order,
            page_bytes=z.N * z.H * z.C * z.dtype.itemsize,
            num_blocks=z.B,
            block_size=z.N,
            ids=ids,
        )

    return Form(order, handed, block, token, cache)


FORMS: dict[str, Form] = {form.name: form for form in _NAMED}
FORMS |= {order: _view(order) for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")}
