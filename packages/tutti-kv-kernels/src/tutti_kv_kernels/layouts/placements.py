# SPDX-License-Identifier: Apache-2.0
"""Planes from the numbers that vLLM's ``KVCacheTensor`` states, without looking at any view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layouts.storages import StorageList
from tutti_kv_kernels.layouts.strided import BlockTable, IdKind
from tutti_kv_kernels.layouts.views import known_layout
from tutti_kv_kernels.plane import Plane

__all__ = ["Placement", "planes_of_placements"]


class Placement(Protocol):
    """Where a set of layers of one shape lies: the fields of vLLM's ``KVCacheTensor`` that are used.

    The page of ``layers[l]`` for block ``b`` starts at byte ``offset + l * layer_stride + b * block_stride``.
    """

    @property
    def layers(self) -> Sequence[str]: ...
    @property
    def layer_stride(self) -> int: ...
    @property
    def block_stride(self) -> int: ...
    @property
    def offset(self) -> int: ...


def planes_of_placements(
    placements: Sequence[tuple[Placement, torch.Tensor]],
    *,
    kv_cache_layout: str | None,
    page_bytes: int | Mapping[str, int],
    num_heads: int | Mapping[str, int],
    table: BlockTable,
    storages: StorageList,
) -> dict[str, list[Plane]]:
    """Planes of each layer by name. Layers may share bytes: a block belongs to one group at a time.

    Args:
        placements: each placement with a tensor over its backing memory, whose storage begins where offsets
            count from.
        kv_cache_layout: the order that the server resolved, one of `KV_CACHE_LAYOUTS`.
        page_bytes: bytes of one (layer, block) page, padding included; one number or one a layer.
        num_heads: heads in a page, one number or one a layer; used only in LHBNC and BHLNC, where a page is
            one run for each head.
        table: the block table. Ids count blocks.
        storages: takes the memory's storages.

    Raises:
        LayoutError: naming the layer and the value that breaks a rule.
    """
    order = known_layout(kv_cache_layout)
    if table.ids is not IdKind.BLOCKS:
        raise LayoutError("pages that are known by their size only are opaque: ids must count blocks")
    layers: dict[str, list[Plane]] = {}
    for placement, memory in placements:
        if memory.layout is not torch.strided:
            raise LayoutError(f"memory must be a strided tensor, this one is {memory.layout}")
        storage = storages.index(memory)
        for index, name in enumerate(placement.layers):
            if name in layers:
                raise LayoutError(f"layer {name!r} is placed twice")
            offset = placement.offset + index * placement.layer_stride
            page = Plane(
                storage,
                offset,
                placement.block_stride,
                table.num_blocks,
                _number(page_bytes, name, "page_bytes"),
            )
            heads = 1 if order in _ONE_RUN else _number(num_heads, name, "num_heads")
            layers[name] = [_split_heads(page, heads, order, placement, name)]
    return layers


_ONE_RUN = frozenset({"LBHNC", "LBNHC", "BLHNC", "BLNHC"})


def _split_heads(page: Plane, heads: int, order: str, placement: Placement, name: str) -> Plane:
    if page.run_bytes % heads != 0:
        raise LayoutError(f"layer {name!r}: page_bytes {page.run_bytes} are not divided by {heads} heads")
    run_bytes = page.run_bytes // heads
    if len(placement.layers) > 1 and placement.layer_stride < run_bytes:
        raise LayoutError(
            f"layer {name!r}: its run of {run_bytes} bytes ({heads} heads in a page of {page.run_bytes}) "
            f"reaches into the next layer, which begins layer_stride {placement.layer_stride} bytes later"
        )
    if heads == 1:
        return page
    # In LHBNC a head's blocks lie side by side, then come those of the next head; in BHLNC its layers do.
    # Not block_stride / heads in BHLNC: a block may be padded, or belong to a group of more layers too.
    if order == "LHBNC":
        what, step, count = "block_stride", placement.block_stride, page.num_blocks
    else:
        what, step, count = "layer_stride", placement.layer_stride, len(placement.layers)
    if step != run_bytes:
        raise LayoutError(
            f"layer {name!r}: {what} must be {run_bytes} in {order}, one of {heads} heads in a page of "
            f"{page.run_bytes} bytes, got {step}"
        )
    return replace(page, run_bytes=run_bytes, counts=(1, 1, heads), strides=(0, 0, step * count))


def _number(value: int | Mapping[str, int], name: str, what: str) -> int:
    found = value.get(name) if isinstance(value, Mapping) else value
    if type(found) is not int or found < 1:
        raise LayoutError(f"layer {name!r}: {what} must be an int of at least 1, got {found!r}")
    return found
