# SPDX-License-Identifier: Apache-2.0
"""Caches of random planes, and copies of caches on a CUDA device."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from cache_samples import POISON
from hypothesis import strategies as st

import tutti_kv_kernels as tk

__all__ = ["Layered", "draw_layered", "on_device"]


def on_device(cache: tk.PagedCache, fill: int | None = None) -> tk.PagedCache:
    """The same cache in the device's memory; with ``fill``, every byte of it that value."""
    storages = [storage.cuda() for storage in cache.storages]
    if fill is not None:
        storages = [storage.fill_(fill) for storage in storages]
    return tk.PagedCache(storages, cache.layers, cache.layer_names)


@dataclass(frozen=True)
class Layered:
    """A cache of random planes and a transfer of some of its blocks."""

    cache: tk.PagedCache
    ids: torch.Tensor
    slots: torch.Tensor
    layers: torch.Tensor
    slot_bytes: int
    num_slots: int

    def poisoned_window(self) -> torch.Tensor:
        return torch.full((self.num_slots * self.slot_bytes,), POISON, dtype=torch.uint8)

    def poisoned_copy(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Storages of poison, except for the bytes of the blocks that are moved."""
        storages = [torch.full_like(storage, POISON) for storage in self.cache.storages]
        for row, layer in zip(ids.tolist(), self.layers.tolist(), strict=True):
            for block in row:
                for plane in self.cache.layers[layer] if block >= 0 else ():
                    where = byte_indices(plane, block)
                    storages[plane.storage][where] = self.cache.storages[plane.storage][where]
        return storages


def byte_indices(plane: tk.Plane, block: int) -> torch.Tensor:
    """Index of every byte of a block's part, by adding up grids."""
    page, token = divmod(block, plane.tokens_per_block)
    where = torch.arange(plane.run_bytes)
    for count, stride in reversed(list(zip(plane.counts, plane.strides, strict=True))):
        where = (torch.arange(count).unsqueeze(1) * stride + where.unsqueeze(0)).flatten()
    return where + plane.offset + page * plane.block_stride + token * plane.token_stride


def random_plane(rng: random.Random, storage: int, num_ids: int, unit: int) -> tk.Plane:
    """A plane whose every number is a multiple of ``unit`` bytes and whose dimensions nest in any order."""
    run = unit * rng.randint(1, rng.choice([3, 40, 300]))
    counts = [rng.randint(1, 3) for _ in range(3)]
    strides = [0, 0, 0]
    reach = run
    for dim in rng.sample(range(3), 3):
        strides[dim] = reach + unit * rng.choice([0, 0, 1, 5])
        reach = strides[dim] * counts[dim]
    tokens = rng.choice([1, 1, 4])
    token_stride = reach + unit * rng.randint(0, 3) if tokens > 1 else 0
    reach = max(reach, token_stride * tokens)
    return tk.Plane(
        storage=storage,
        offset=unit * rng.randint(0, 5),
        block_stride=reach + unit * rng.choice([0, 3]),
        num_blocks=num_ids // tokens,
        run_bytes=run,
        counts=(counts[0], counts[1], counts[2]),
        strides=(strides[0], strides[1], strides[2]),
        tokens_per_block=tokens,
        token_stride=token_stride,
    )


@st.composite
def draw_layered(draw: st.DrawFn) -> Layered:
    """Any alignment from 1 to 512 bytes, one to six layers of one to three planes."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    unit = draw(st.sampled_from([1, 2, 4, 8, 16, 64, 256, 512]))
    columns, segments = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    num_ids = 4 * (columns * segments + rng.randint(0, 3))
    layers: list[list[tk.Plane]] = []
    for _ in range(draw(st.sampled_from([1, 1, 3, 6]))):
        first = sum(map(len, layers))
        count = rng.randint(1, 3)
        layers.append([random_plane(rng, first + i, num_ids, unit) for i in range(count)])
    sizes = [p.offset + p.num_blocks * p.block_stride + rng.randint(0, 9) for ps in layers for p in ps]
    storages = [torch.frombuffer(bytearray(rng.randbytes(size)), dtype=torch.uint8) for size in sizes]
    cache = tk.PagedCache(storages, layers)
    # Blocks of different layers never share memory, so the rows need not differ; those of one layer do.
    return Layered(
        cache=cache,
        ids=torch.tensor(rng.sample(range(num_ids), columns * segments)).view(segments, columns),
        slots=torch.tensor(rng.sample(range(segments + 2), segments)),
        layers=torch.tensor([rng.randrange(len(layers)) for _ in range(segments)]),
        slot_bytes=columns * max(map(cache.block_bytes, range(len(layers)))) + unit * rng.choice([0, 1, 17]),
        num_slots=segments + 2,
    )
