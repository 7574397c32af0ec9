# SPDX-License-Identifier: Apache-2.0
"""A server's whole paged cache: its memory, the geometry of its layers, and transfers of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layout import PagedLayout
from tutti_kv_kernels.layouts import (
    IdKind,
    Placement,
    StorageList,
    planes_of_format,
    planes_of_placements,
    planes_of_views,
)
from tutti_kv_kernels.layouts.strided import BlockTable
from tutti_kv_kernels.ops import check_planes, gather_op, run, scatter_op
from tutti_kv_kernels.plane import BLOCK_IS_TOKEN, OPAQUE, Plane, planes_table

__all__ = ["PagedCache"]


class PagedCache:
    """Layers of a paged KV cache, each a list of planes over shared storages.

    A transfer moves *segments*: segment ``i`` is the blocks ``block_ids[i, :]`` of one layer, packed one
    after the other into slot ``slots[i]`` of a window. ``layers`` says which layer: an int for all segments,
    a tensor of one index a segment, a sequence of layers, or None for all of them. With the last two
    ``slots`` and the checksums are ``[layers, n]``, and every layer uses the same ``block_ids``; where a
    cache has one layer, ``[n]`` will do for all of them.

    Where the cache was described with ``ids="tokens"``, ids are the entries of a slot mapping and a "block"
    is one token: its K, then its V, of all heads.

    Attributes:
        storages: the memory, uint8 1-D tensors; written by `scatter`.
        layers: the planes of each layer.
        layer_names: their names; the indices as text where the server has none.
    """

    def __init__(
        self,
        storages: Sequence[torch.Tensor],
        layers: Sequence[Sequence[Plane]],
        layer_names: Sequence[str] | None = None,
    ) -> None:
        """Put together storages and planes; see the class methods for servers' caches.

        Raises:
            LayoutError: when there is no layer, a layer has no plane, the names do not fit, or a plane
                overlaps itself or reaches outside its storage.
        """
        if not layers or not all(layers):
            raise LayoutError("a cache must have at least one layer, and each layer at least one plane")
        names = tuple(map(str, range(len(layers)))) if layer_names is None else tuple(layer_names)
        if len(names) != len(layers) or len(set(names)) != len(names):
            raise LayoutError(f"layer_names must be {len(layers)} different names, got {names}")
        self.storages = tuple(storages)
        self.layers = tuple(tuple(planes) for planes in layers)
        self.layer_names = names
        self.planes = planes_table(self.layers)
        check_planes(self.planes, self.storages)

    @classmethod
    def from_format(
        cls,
        name: str | int,
        tensors: Any,
        *,
        num_blocks: int,
        block_size: int,
        ids: str = "blocks",
        scale_bytes: int | None = None,
        layer_names: Sequence[str] | None = None,
    ) -> PagedCache:
        """A cache handed over in one of the named formats.

        Args:
            name: name or id of the format, one of ``FORMATS``.
            tensors: the tensors, as the format's ``tensors`` says: one tensor, a list of one a layer, two
                lists (K and V), or a list of tuples.
            num_blocks: blocks in the server's block table.
            block_size: tokens in a block.
            ids: "blocks", or "tokens" for a slot mapping.
            scale_bytes: bytes of a token's scales, for NL_X_NB_BSV_BSS only.
            layer_names: names of the layers, where they have any.

        Raises:
            LayoutError: when a tensor does not have the shape and strides that the format says.
        """
        storages = StorageList()
        table = _table(num_blocks, block_size, ids)
        layers = planes_of_format(name, tensors, table, storages, scale_bytes=scale_bytes)
        return cls(storages.tensors, layers, layer_names)

    @classmethod
    def from_kv_caches(
        cls,
        kv_caches: Mapping[str, torch.Tensor],
        *,
        kv_cache_layout: str | None,
        page_bytes: int | Mapping[str, int],
        num_blocks: int,
        block_size: int,
        ids: str = "blocks",
    ) -> PagedCache:
        """A cache as vLLM registers it: one logical view ``[rows, H, N, C]`` a layer, in any physical order.

        Args:
            kv_caches: the views by layer name.
            kv_cache_layout: the order that vLLM resolved, one of `KV_CACHE_LAYOUTS`.
            page_bytes: bytes of one (layer, block) page as vLLM states it; one number, or one a layer.
            num_blocks: blocks in vLLM's block table.
            block_size: tokens in a block of that table.
            ids: "blocks", or "tokens" for a slot mapping.

        Raises:
            LayoutError: for a view that does not have the layout that is claimed.
        """
        storages = StorageList()
        layers = planes_of_views(
            kv_caches,
            kv_cache_layout=kv_cache_layout,
            page_bytes=page_bytes,
            table=_table(num_blocks, block_size, ids),
            storages=storages,
        )
        return cls(storages.tensors, layers, list(kv_caches))

    @classmethod
    def from_placements(
        cls,
        placements: Sequence[tuple[Placement, torch.Tensor]],
        *,
        kv_cache_layout: str | None,
        page_bytes: int | Mapping[str, int],
        num_blocks: int,
        num_heads: int | Mapping[str, int] = 1,
    ) -> PagedCache:
        """A cache from the numbers of vLLM's ``KVCacheTensor`` entries, each with its backing memory.

        Pages are opaque, padding included. ``num_heads`` is needed in LHBNC and BHLNC only, where a page is
        one run for each head. Layers may share bytes; a transfer that writes the same bytes twice is refused.

        Raises:
            LayoutError: naming the layer and the value that breaks a rule.
        """
        storages = StorageList()
        layers = planes_of_placements(
            placements,
            kv_cache_layout=kv_cache_layout,
            page_bytes=page_bytes,
            num_heads=num_heads,
            table=_table(num_blocks, 1, "blocks"),
            storages=storages,
        )
        return cls(storages.tensors, list(layers.values()), list(layers))

    @classmethod
    def from_layouts(cls, layers: Mapping[str, tuple[torch.Tensor, PagedLayout]]) -> PagedCache:
        """A cache of layers whose pages are one run each, by name.

        Args:
            layers: a tensor over the layer's memory, of which only the storage matters, and where its pages
                are in that storage.

        Raises:
            LayoutError: for a layout that reaches beyond its storage.
        """
        storages = StorageList()
        planes = [
            [replace(layout.plane, storage=storages.index(memory))] for memory, layout in layers.values()
        ]
        return cls(storages.tensors, planes, list(layers))

    def block_bytes(self, layer: int) -> int:
        """Packed bytes of one block (or token) of a layer."""
        return sum(plane.packed_bytes for plane in self.layers[layer])

    def block_tokens(self, layer: int) -> int:
        """Tokens in one block of a layer; 1 where ids count tokens, 0 where tokens do not divide blocks."""
        planes = self.layers[layer]
        if any(plane.token_dim == OPAQUE for plane in planes):
            return 0
        if planes[0].token_dim == BLOCK_IS_TOKEN:
            return 1
        return max(plane.first_token + plane.counts[plane.token_dim] for plane in planes)

    def num_ids(self, layer: int) -> int:
        """How many blocks (or tokens) a layer has."""
        return self.layers[layer][0].num_ids

    def gather(
        self,
        block_ids: torch.Tensor,
        window: torch.Tensor,
        slots: torch.Tensor,
        slot_bytes: int,
        *,
        layers: int | torch.Tensor | Sequence[int] | None = None,
        token_ranges: torch.Tensor | None = None,
        missing_blocks: bool = False,
        checksums: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
        num_threads: int = 1,
    ) -> torch.Tensor:
        """Pack each segment into its slot, fill the slot's rest with zeros and return the checksums.

        Args:
            block_ids: int64 ``[n, blocks]``, contiguous.
            window: uint8 ``[window bytes]``; slot ``s`` starts at byte ``s * slot_bytes``.
            slots: int64 ``[n]`` (several layers: ``[layers, n]``), no slot twice.
            slot_bytes: at least ``blocks * block_bytes(layer)`` of each layer used.
            layers: see the class.
            token_ranges: int64, two numbers for each slot: the first token of the segment that takes part,
                and how many do, counted over its blocks. The others are packed as zeros, in their places.
            missing_blocks: allow -1 in ``block_ids``, packed as zeros. Where ids count tokens, every negative
                id is meant.
            checksums: int64, of the shape of ``slots``, to be filled; made when left out.
            status: int32, of the shape of ``slots``, to be filled with `ScatterStatus` ``OK``, or
                ``OUT_OF_RANGE`` for a segment with an id, slot or layer on a device that names nothing there.
                Valid when the transfer is: on a device, after an event on its stream.
            num_threads: threads to use, at most one a segment.

        Returns:
            The checksum of each segment's packed bytes (two's complement), of the shape of ``slots``.

        Raises:
            ValueError: for any argument that breaks a rule above, and for a window that overlaps the cache.
                Nothing has been written then. Values of ids, slots and layers on a device raise nothing: a
                block that is out of range is packed as zeros, a slot that is out of range is left out, and
                its checksum is not written. ``status`` tells both.
        """
        if checksums is None:
            checksums = torch.empty(slots.shape, dtype=torch.int64, device=slots.device)
        flat, indices, repeats = self._segments(slots, layers)
        run(
            gather_op,
            list(self.storages),
            self.planes,
            indices,
            block_ids,
            repeats,
            _flat_pairs(token_ranges),
            missing_blocks,
            window,
            flat,
            slot_bytes,
            checksums.view(-1),
            None if status is None else status.view(-1),
            num_threads,
        )
        return checksums

    def scatter(
        self,
        window: torch.Tensor,
        slots: torch.Tensor,
        slot_bytes: int,
        block_ids: torch.Tensor,
        checksums: torch.Tensor,
        *,
        layers: int | torch.Tensor | Sequence[int] | None = None,
        token_ranges: torch.Tensor | None = None,
        read_status: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
        num_threads: int = 1,
    ) -> torch.Tensor:
        """Unpack each slot that was read and whose bytes are those its checksum was taken of.

        Args:
            window, slots, slot_bytes, layers, num_threads: as in `gather`, except that slots may repeat.
            block_ids: int64 ``[n, blocks]``; -1 leaves a block out (where ids count tokens, every negative id
                does); its bytes are verified all the same. No byte may be written twice.
            checksums: int64, what `gather` returned for these segments.
            token_ranges: as in `gather`; the tokens outside are verified and left as they are.
            read_status: int32, of the shape of ``slots``; a segment is looked at only where it is 0.
            status: int32, of the shape of ``slots``, to be filled; made when left out.

        Returns:
            A `ScatterStatus` for each segment, int32 of the shape of ``slots``.

        Raises:
            ValueError: as `gather`. Nothing has been written then.
        """
        if status is None:
            status = torch.empty(slots.shape, dtype=torch.int32, device=slots.device)
        flat, indices, repeats = self._segments(slots, layers)
        run(
            scatter_op,
            window,
            flat,
            slot_bytes,
            list(self.storages),
            self.planes,
            indices,
            block_ids,
            repeats,
            _flat_pairs(token_ranges),
            checksums.view(-1),
            None if read_status is None else read_status.view(-1),
            status.view(-1),
            num_threads,
        )
        return status

    def _segments(
        self, slots: torch.Tensor, layers: int | torch.Tensor | Sequence[int] | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """The slots in one dimension, each segment's layer, and how often the rows of ids are used."""
        count = len(self.layers)
        if isinstance(layers, torch.Tensor):
            return slots, layers, 1
        if layers is None and count == 1 and slots.dim() == 1:
            return slots, None, 1
        several = layers is None or isinstance(layers, Sequence)
        chosen = range(count) if layers is None else layers if isinstance(layers, Sequence) else (layers,)
        for layer in chosen:
            if not 0 <= layer < count:
                raise ValueError(f"tutti_kv_kernels: layers must be 0 to {count - 1}, got {layer}")
        if not several:
            return slots, torch.full_like(slots, chosen[0]), 1
        if slots.dim() != 2 or slots.shape[0] != len(chosen):
            which = "all layers are moved (layers=None)" if layers is None else f"layers is {list(chosen)}"
            raise ValueError(
                f"tutti_kv_kernels: slots must be [{len(chosen)}, n] where {which}, got shape "
                f"{list(slots.shape)}"
            )
        indices = torch.tensor(chosen, dtype=torch.int64, device=slots.device)
        return slots.view(-1), indices.repeat_interleave(slots.shape[1]), max(len(chosen), 1)


def _flat_pairs(token_ranges: torch.Tensor | None) -> torch.Tensor | None:
    return None if token_ranges is None else token_ranges.view(-1, token_ranges.shape[-1])


def _table(num_blocks: int, block_size: int, ids: str) -> BlockTable:
    if ids not in {kind.value for kind in IdKind}:
        raise LayoutError(f'ids must be "blocks" or "tokens", got {ids!r}')
    return BlockTable(num_blocks, block_size, IdKind(ids))
