# SPDX-License-Identifier: Apache-2.0
"""The named formats in which servers hand over their caches.

Ids and names are those of LMCache 0.5.6 (``EngineKVFormat``): NB blocks, NL layers, BS tokens a block, NH
heads, HS head size, CS = 2 x HS, TWO = K and V, ``A_X_B`` = a list of A tensors of shape B. A format is never
guessed from a shape: two blocks, two heads and K and V look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layouts.storages import StorageList
from tutti_kv_kernels.layouts.strided import BlockTable, IdKind, named_axes, planes_of_tensor
from tutti_kv_kernels.plane import BLOCK_IS_TOKEN, Plane

__all__ = ["FORMATS", "Format", "planes_of_format"]

# The tensors of each layer in packed order, from what the server hands over.
_Split = Callable[[Any], list[tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Format:
    """One named format.

    Attributes:
        number: its stable id.
        name: its name.
        axes: letters of a layer's tensor (see `strided`), layers left out.
        tensors: what the server hands over, in words.
    """

    number: int
    name: str
    axes: str
    tensors: str
    split: _Split

    @property
    def order(self) -> str:
        """The order in which a block is packed: that of the memory, K before V, blocks left out."""
        inner = self.axes.replace("B", "").replace("1", "")
        return inner.replace("S", "N")


def _layer_list(tensors: Any) -> list[tuple[torch.Tensor, ...]]:
    return [(tensor,) for tensor in _sequence(tensors, "a list of one tensor a layer")]


def _one_tensor(tensor: Any) -> list[tuple[torch.Tensor, ...]]:
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"one tensor of all layers is needed, got {type(tensor).__name__}")
    if tensor.dim() < 2:
        raise LayoutError(f"one tensor of all layers is needed, this one has shape {tuple(tensor.shape)}")
    return [(layer,) for layer in tensor.unbind(1)]


def _two_lists(tensors: Any) -> list[tuple[torch.Tensor, ...]]:
    rule = "two lists of one tensor a layer, K and V"
    lists = [_sequence(part, rule) for part in _sequence(tensors, rule)]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise LayoutError(f"{rule}, are needed, equally long, got {[len(part) for part in lists]} tensors")
    return list(zip(*lists, strict=True))


def _tuples(tensors: Any) -> list[tuple[torch.Tensor, ...]]:
    rule = "a list of one tuple of tensors a layer"
    layers = [tuple(_sequence(layer, rule)) for layer in _sequence(tensors, rule)]
    if not all(layers):
        raise LayoutError(f"{rule} is needed, got an empty tuple")
    return layers


def _pairs(tensors: Any) -> list[tuple[torch.Tensor, ...]]:
    layers = _tuples(tensors)
    if any(len(layer) != 2 for layer in layers):
        raise LayoutError("a list of one (K, V) pair of tensors a layer is needed")
    return layers


def _sequence(value: Any, rule: str) -> Sequence[Any]:
    if isinstance(value, torch.Tensor) or not isinstance(value, Sequence) or not value:
        raise LayoutError(f"{rule} is needed, got {type(value).__name__}")
    return value


_LAYERS = "list of layers"
_CROSS = "one tensor of all layers"
_LISTS = "K list and V list"

FORMATS: Final[tuple[Format, ...]] = (
    Format(0, "NB_NL_TWO_BS_NH_HS", "BTNHC", _CROSS, _one_tensor),
    Format(1, "NL_X_TWO_NB_BS_NH_HS", "TBNHC", _LAYERS, _layer_list),
    Format(2, "NL_X_NB_TWO_BS_NH_HS", "BTNHC", _LAYERS, _layer_list),
    Format(3, "NL_X_NB_BS_HS", "BNC", _LAYERS, _layer_list),
    Format(4, "TWO_X_NL_X_NBBS_NH_HS", "SHC", _LISTS, _two_lists),
    Format(5, "NL_X_NBBS_ONE_HS", "S1C", _LAYERS, _layer_list),
    Format(6, "NL_X_TWO_NB_NH_BS_HS", "TBHNC", _LAYERS, _layer_list),
    Format(7, "NL_X_NB_TWO_NH_BS_HS", "BTHNC", _LAYERS, _layer_list),
    Format(8, "NB_NL_TWO_NH_BS_HS", "BTHNC", _CROSS, _one_tensor),
    Format(9, "TWO_X_NL_X_NB_BS_NH_HS", "BNHC", _LISTS, _two_lists),
    Format(10, "NL_X_NB_NH_BS_TWO_HS", "BHNTC", _LAYERS, _layer_list),
    Format(11, "NL_X_NB_BS_NH_TWO_HS", "BNHTC", _LAYERS, _layer_list),
    Format(12, "NL_X_NB_NH_BS_CS", "BHNC", _LAYERS, _layer_list),
    Format(13, "NL_X_NB_BS_NH_CS", "BNHC", _LAYERS, _layer_list),
    Format(14, "NL_X_NB_BSV_BSS", "BNC", _LAYERS, _layer_list),
    Format(15, "NL_X_TWO_NB_NH_ONE_BS_HS", "TBH1NC", _LAYERS, _layer_list),
    Format(16, "NL_X_TWO_X_NB_BS_NH_HS", "BNHC", "list of (K, V)", _pairs),
    Format(17, "NL_X_NP_X_NB_BS_ONE_HS", "BN1C", "list of tuples of planes", _tuples),
    Format(18, "NL_X_NB_BS_NH_HS", "BNHC", _LAYERS, _layer_list),
)
"""All named formats; each one's place is its id."""

_VALUES_THEN_SCALES = 14


def planes_of_format(
    name: str | int, tensors: Any, table: BlockTable, storages: StorageList, *, scale_bytes: int | None = None
) -> list[list[Plane]]:
    """Planes of each layer of a cache that is handed over in the named format.

    Args:
        name: name or id of the format.
        tensors: what ``Format.tensors`` says.
        table: the block table; it must agree with the tensors' shapes.
        storages: takes the tensors' storages.
        scale_bytes: bytes of one token's scales; needed for NL_X_NB_BSV_BSS, refused for others.

    Raises:
        LayoutError: with the layer, its shape and strides, and the rule that it breaks.
    """
    found = _format(name)
    if (scale_bytes is not None) != (found.number == _VALUES_THEN_SCALES):
        needed = "is needed for" if scale_bytes is None else "has no meaning in"
        raise LayoutError(f"scale_bytes {needed} format {found.name}")
    layers: list[list[Plane]] = []
    for index, parts in enumerate(found.split(tensors)):
        planes: list[Plane] = []
        for tensor in parts:
            try:
                if scale_bytes is not None:
                    planes += _values_then_scales(tensor, table, storages, scale_bytes)
                else:
                    planes += planes_of_tensor(tensor, found.axes, found.order, table, storages)
            except LayoutError as error:
                raise LayoutError(_context(found, index, tensor, error)) from None
        layers.append(planes)
    return layers


def _format(name: str | int) -> Format:
    for known in FORMATS:
        if name == known.name or (type(name) is int and name == known.number):
            return known
    raise LayoutError(f"format must be one of {', '.join(f.name for f in FORMATS)} or its id, got {name!r}")


def _context(found: Format, index: int, tensor: Any, error: LayoutError) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"layer {index} in format {found.name}: {error}"
    strides = tensor.stride() if tensor.layout is torch.strided else "none"
    return (
        f"layer {index} in format {found.name}: {error} (shape {tuple(tensor.shape)}, strides {strides}, "
        f"dtype {tensor.dtype})"
    )


def _values_then_scales(
    tensor: torch.Tensor, table: BlockTable, storages: StorageList, scale_bytes: int
) -> list[Plane]:
    """A page of BS x C bytes that holds the values of all its tokens, then the scales of all its tokens."""
    axes = named_axes(tensor, "BNC")
    token_bytes = axes["C"].size * tensor.itemsize
    if type(scale_bytes) is not int or not 0 < scale_bytes < token_bytes:
        raise LayoutError(f"scale_bytes must be 1 to {token_bytes - 1}, got {scale_bytes!r}")
    if axes["N"].size > 1 and axes["N"].stride != token_bytes:
        raise LayoutError("the page after axis B must be dense: its bytes are not those that the shape says")
    value_bytes = token_bytes - scale_bytes
    tokens = axes["N"].size
    whole = planes_of_tensor(tensor, "BNC", "NC", table, storages)
    planes: list[Plane] = []
    for page in whole:
        for offset, size in ((0, value_bytes), (tokens * value_bytes, scale_bytes)):
            part = replace(page, offset=page.offset + offset, run_bytes=size)
            if table.ids is IdKind.TOKENS:
                part = replace(part, token_stride=size if tokens > 1 else 0, token_dim=BLOCK_IS_TOKEN)
            else:
                part = replace(part, strides=(0, 0, size if tokens > 1 else 0))
            planes.append(part)
    return planes
