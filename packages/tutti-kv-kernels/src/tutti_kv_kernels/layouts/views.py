# SPDX-License-Identifier: Apache-2.0
"""Planes of the per-layer views that vLLM registers, for every physical order of its ``KVCacheLayout``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layouts.storages import StorageList
from tutti_kv_kernels.layouts.strided import Axes, BlockTable, named_axes, planes_of_tensor
from tutti_kv_kernels.plane import Plane

__all__ = ["KV_CACHE_LAYOUTS", "planes_of_views"]

KV_CACHE_LAYOUTS: Final = {
    "LBHNC": "LBHNC",
    "LBNHC": "LBNHC",
    "LHBNC": "LHBNC",
    "BLHNC": "BLHNC",
    "BLNHC": "BLNHC",
    "BHLNC": "BHLNC",
    "HND": "LBHNC",
    "NHD": "LBNHC",
}
"""Physical orders of layers, blocks, heads, tokens and content, by name; the last two are older names."""


def planes_of_views(
    views: Mapping[str, torch.Tensor],
    *,
    kv_cache_layout: str | None,
    page_bytes: int | Mapping[str, int],
    table: BlockTable,
    storages: StorageList,
) -> list[list[Plane]]:
    """Planes of each layer, in the mapping's order.

    A page is packed in the order of the layout's name: heads, tokens, content or tokens, heads, content.

    Args:
        views: each layer's view, logically ``[rows, H, N, C]`` (or ``[rows, N, C]``), whatever its strides;
            ``rows`` is ``num_blocks`` times the number of kernel blocks in a block.
        kv_cache_layout: the order that the server resolved, one of `KV_CACHE_LAYOUTS`.
        page_bytes: bytes of one (layer, block) page as the server states it, padding included; one number, or
            one a layer where groups differ.
        table: the block table.
        storages: takes the tensors' storages.

    Raises:
        LayoutError: with the layer's name, shape, strides and the rule that it breaks.
    """
    order = known_layout(kv_cache_layout)
    layers = []
    for name, view in views.items():
        stated = page_bytes if isinstance(page_bytes, int) else page_bytes.get(name)
        try:
            layers.append(_planes_of_view(view, order, stated, table, storages))
        except LayoutError as error:
            strides = view.stride() if view.layout is torch.strided else "none"
            raise LayoutError(
                f"KV cache of layer {name!r}: {error} (shape {tuple(view.shape)}, strides {strides}, dtype "
                f"{view.dtype}, layout {kv_cache_layout!r}, page_bytes {stated!r}, {table})"
            ) from None
    return layers


def known_layout(name: str | None) -> str:
    """The physical order that a layout's name stands for.

    Raises:
        LayoutError: for any other name, and for none.
    """
    if name is None or name not in KV_CACHE_LAYOUTS:
        raise LayoutError(
            f"the layout must be one of {', '.join(KV_CACHE_LAYOUTS)}, got {name!r}; "
            "it is never guessed from a shape"
        )
    return KV_CACHE_LAYOUTS[name]


def _planes_of_view(
    view: torch.Tensor, order: str, page_bytes: int | None, table: BlockTable, storages: StorageList
) -> list[Plane]:
    letters = "BHNC" if view.dim() == 4 else "BNC"
    axes = named_axes(view, letters)
    inner = "".join(letter for letter in order if letter in letters)
    _check_order(axes, inner)
    planes = planes_of_tensor(view, letters, inner.replace("B", ""), table, storages)
    content = view.numel() * view.itemsize // table.num_blocks
    # Padding lies after a page's content, so it needs room before the next page.
    one_row = axes["B"].size == table.num_blocks
    padded = inner[0] == "B" and one_row and content < (page_bytes or 0) <= axes["B"].stride
    if page_bytes != content and not padded:
        raise LayoutError(f"page_bytes must be {content}, the bytes of a block in this tensor")
    return planes


def _check_order(axes: Axes, order: str) -> None:
    """Bytes packed under a name that contradicts the strides are misplaced by whoever trusts the name."""
    stepped = [letter for letter in order if letter in axes and axes[letter].size > 1]
    found = sorted(stepped, key=lambda letter: -axes[letter].stride)
    if found != stepped:
        raise LayoutError(
            f"the strides put dimensions in the order {''.join(found)}, the layout's name says "
            f"{''.join(stepped)}"
        )
