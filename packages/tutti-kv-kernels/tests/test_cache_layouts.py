# SPDX-License-Identifier: Apache-2.0
"""Descriptions of whole caches: what contradicts the tensors is refused, what only looks odd is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cache_samples import FORMS, Sample, Sizes

import tutti_kv_kernels as tk

BF16 = torch.bfloat16


def per_layer(*shape: int, layers: int = 2) -> list[torch.Tensor]:
    return [torch.zeros(*shape, dtype=BF16) for _ in range(layers)]


def from_format(name: str | int, tensors: Any, **changes: Any) -> tk.PagedCache:
    return tk.PagedCache.from_format(name, tensors, **({"num_blocks": 8, "block_size": 4} | changes))


FUSED = "NL_X_NB_BS_NH_CS"
SPLIT = "NL_X_TWO_NB_BS_NH_HS"
WIDE = torch.zeros(8, 4, 2, 32, dtype=BF16)

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "unknown name": (lambda: from_format("NHD", per_layer(8, 4, 2, 16)), "format must be one of NB_NL_TWO"),
    "unknown id": (lambda: from_format(19, per_layer(8, 4, 2, 16)), "format must be one of .* got 19"),
    "a truth value": (lambda: from_format(True, per_layer(2, 8, 4, 2, 16)), "format must be one of .* True"),
    "rank": (lambda: from_format(FUSED, per_layer(8, 4, 16)), r"the shape must be \[B, N, H, C\], 4 axes"),
    "K and V are not two": (
        lambda: from_format(SPLIT, per_layer(3, 8, 4, 2, 16)),
        r"layer 0 in format NL_X_TWO_NB_BS_NH_HS: axis T .* must be 2, it is 3 \(shape \(3, 8, 4, 2, 16\),",
    ),
    "one head is not one": (lambda: from_format(5, per_layer(32, 2, 16)), r"axis 1 of .* must be 1, it is 2"),
    "empty axis": (lambda: from_format(FUSED, per_layer(8, 4, 0, 16)), "axis H of .* is empty"),
    "fewer blocks": (
        lambda: from_format(FUSED, per_layer(8, 4, 2, 16), num_blocks=16),
        "axis B, 8, must be a multiple of num_blocks, 16",
    ),
    "other block size": (
        lambda: from_format(FUSED, per_layer(8, 4, 2, 16), block_size=16),
        "block_size must be 1 x 4, the tokens of a block in this tensor, got 16",
    ),
    "rows without tokens": (
        lambda: from_format(FUSED, per_layer(8, 4, 2, 16), num_blocks=4),
        "block_size must be 2 x 4",
    ),
    "small pool": (
        lambda: from_format(5, per_layer(31, 1, 16)),
        "the pool's first axis, 31, must have num_blocks x block_size = 32 tokens",
    ),
    "content with gaps": (
        lambda: from_format(FUSED, [WIDE[..., ::2]]),
        "the innermost axis C must be contiguous, its stride is 4 bytes for values of 2",
    ),
    "content outside": (
        lambda: from_format(FUSED, [WIDE.transpose(1, 3)], block_size=32),
        "innermost axis C",
    ),
    "one value repeated": (
        lambda: from_format(FUSED, [WIDE[:, :, :1].expand(8, 4, 2, 32)]),
        "planes.0. overlaps itself: it takes 2 steps of 0 bytes over parts of 64 bytes",
    ),
    "overlapping blocks": (
        lambda: from_format(FUSED, [WIDE.as_strided((8, 4, 2, 32), (128, 64, 32, 1))]),
        "overlaps itself: it takes 8 steps of 256 bytes over parts of 512 bytes",
    ),
    "a list for one tensor": (
        lambda: from_format(0, per_layer(8, 2, 2, 4, 2, 16)),
        "one tensor of all layers",
    ),
    "one tensor for a list": (
        lambda: from_format(SPLIT, torch.zeros(2, 8, 4, 2, 16)),
        "a list of one tensor",
    ),
    "no layers": (lambda: from_format(SPLIT, []), "a list of one tensor a layer is needed"),
    "no tensor": (lambda: from_format(SPLIT, [None]), "layer 0 .* a tensor is needed, got NoneType"),
    "uneven lists": (
        lambda: from_format(9, [per_layer(8, 4, 2, 16), per_layer(8, 4, 2, 16, layers=1)]),
        r"two lists of one tensor a layer, K and V, are needed, equally long, got \[2, 1\]",
    ),
    "three for a pair": (
        lambda: from_format(16, [tuple(per_layer(8, 4, 2, 16, layers=3))]),
        r"one \(K, V\) pair",
    ),
    "no scale bytes": (
        lambda: from_format(14, [torch.zeros(8, 4, 20, dtype=torch.uint8)]),
        "scale_bytes is needed for format NL_X_NB_BSV_BSS",
    ),
    "scale bytes elsewhere": (
        lambda: from_format(FUSED, [WIDE], scale_bytes=4),
        "scale_bytes has no meaning in format NL_X_NB_BS_NH_CS",
    ),
    "scales without values": (
        lambda: from_format(14, [torch.zeros(8, 4, 20, dtype=torch.uint8)], scale_bytes=20),
        "scale_bytes must be 1 to 19, got 20",
    ),
    "scales in a strided page": (
        lambda: from_format(14, [torch.zeros(8, 8, 20, dtype=torch.uint8)[:, ::2]], scale_bytes=4),
        "the page after axis B must be dense",
    ),
    "sparse": (
        lambda: from_format(3, [torch.zeros(8, 4, 16).to_sparse()]),
        "a strided tensor is needed, this one is torch.sparse_coo",
    ),
    "two devices": (
        lambda: from_format(FUSED, [WIDE, WIDE.to("meta")]),
        "all tensors of a cache must be on one device, got cpu and meta",
    ),
    "no block size": (
        lambda: from_format(FUSED, [WIDE], block_size=0),
        "block_size must be an int of at least 1",
    ),
    "float blocks": (lambda: from_format(FUSED, [WIDE], num_blocks=8.0), "num_blocks must be an int"),
    "ids of what": (lambda: from_format(FUSED, [WIDE], ids="pages"), 'ids must be "blocks" or "tokens"'),
    "names": (lambda: from_format(FUSED, [WIDE], layer_names=["a", "b"]), "layer_names must be 1 different"),
    "equal names": (
        lambda: from_format(FUSED, [WIDE, WIDE.clone()], layer_names=["a", "a"]),
        "layer_names must be 2 different names",
    ),
    "no planes": (lambda: tk.PagedCache([], []), "at least one layer"),
    "a layer without planes": (lambda: tk.PagedCache([], [[]]), "each layer at least one plane"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_of_a_format_says_what_and_why(case: str) -> None:
    make, rule = REFUSED[case]
    with pytest.raises(tk.LayoutError, match=rule):
        make()


@dataclass(frozen=True)
class View:
    """Arguments of a cache from vLLM's views, right as they are."""

    view: torch.Tensor
    kv_cache_layout: str | None = "LBHNC"
    page_bytes: int | dict[str, int] = 8 * 2 * 16
    num_blocks: int = 8
    block_size: int = 4

    def cache(self) -> tk.PagedCache:
        return tk.PagedCache.from_kv_caches(
            {"layers.7": self.view},
            kv_cache_layout=self.kv_cache_layout,
            page_bytes=self.page_bytes,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
        )


LOGICAL = torch.zeros(8, 2, 4, 16, dtype=BF16)
PADDED = torch.zeros(8, 160, dtype=BF16)[:, :128].unflatten(1, (2, 4, 16))

REFUSED_VIEWS = {
    "no layout": (View(LOGICAL, kv_cache_layout=None), "never guessed from a shape"),
    "unknown layout": (
        View(LOGICAL, kv_cache_layout="BNHC"),
        "the layout must be one of LBHNC, .* got 'BNHC'",
    ),
    "other order": (View(LOGICAL, "LBNHC"), "in the order BHN?C?.*, the layout's name says BNH"),
    "blocks inside heads": (View(LOGICAL, "LHBNC"), "in the order BHNC, the layout's name says HBNC"),
    "page size": (
        View(LOGICAL, page_bytes=512),
        "page_bytes must be 256, the bytes of a block in this tensor",
    ),
    "page beyond its padding": (View(PADDED, page_bytes=324), "page_bytes must be 256"),
    "page of no layer": (View(LOGICAL, page_bytes={"layers.8": 256}), "page_bytes must be 256"),
    "blocks": (View(LOGICAL, num_blocks=3), "axis B, 8, must be a multiple of num_blocks, 3"),
    "K and V apart": (View(torch.zeros(2, 8, 4, 2, 16)), r"the shape must be \[B, N, C\]"),
}


@pytest.mark.parametrize("case", REFUSED_VIEWS)
def test_refusal_of_a_view_names_the_layer(case: str) -> None:
    view, rule = REFUSED_VIEWS[case]
    with pytest.raises(tk.LayoutError, match=rule) as caught:
        view.cache()
    if "the layout must be" not in rule and "guessed" not in rule:
        assert "'layers.7'" in str(caught.value)
        assert str(tuple(view.view.shape)) in str(caught.value)


def test_a_padded_page_keeps_its_padding_in_the_cache() -> None:
    cache = View(PADDED, page_bytes=320).cache()
    assert cache.block_bytes(0) == 256
    assert cache.layers[0][0].block_stride == 320


def test_mla_views_have_no_heads() -> None:
    cache = View(torch.zeros(8, 4, 72, dtype=BF16), page_bytes=576).cache()
    assert (cache.block_bytes(0), cache.block_tokens(0), cache.num_ids(0)) == (576, 4, 8)


def test_layers_may_have_pages_of_different_sizes() -> None:
    views = {"full": LOGICAL, "small": torch.zeros(8, 1, 4, 16, dtype=BF16)}
    cache = tk.PagedCache.from_kv_caches(
        views, kv_cache_layout="HND", page_bytes={"full": 256, "small": 128}, num_blocks=8, block_size=4
    )
    assert cache.layer_names == ("full", "small")
    assert [cache.block_bytes(layer) for layer in (0, 1)] == [256, 128]


def test_sizes_of_two_are_what_their_name_says() -> None:
    """[2, 2, 2, 2, C]: K and V outside or inside blocks differ by the name alone."""
    tensor = torch.arange(2**4 * 8, dtype=torch.uint8).view(2, 2, 2, 2, 8)
    packed = {}
    for name in (SPLIT, "NL_X_NB_TWO_BS_NH_HS"):
        cache = tk.PagedCache.from_format(name, [tensor], num_blocks=2, block_size=2)
        window = torch.zeros(64, dtype=torch.uint8)
        cache.gather(torch.tensor([[1]]), window, torch.tensor([0]), 64)
        packed[name] = window
    assert packed[SPLIT].equal(torch.cat([tensor[0, 1], tensor[1, 1]]).view(-1))
    assert packed["NL_X_NB_TWO_BS_NH_HS"].equal(tensor[1].reshape(-1))


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_knows_its_sizes(form: str) -> None:
    blocks = Sample(FORMS[form], Sizes())
    tokens = Sample(FORMS[form], Sizes(), "tokens")
    for layer in range(2):
        assert blocks.cache.num_ids(layer) == 4
        assert blocks.cache.block_tokens(layer) == 4
        assert blocks.cache.block_bytes(layer) == len(blocks.packed(layer, 0))
        assert tokens.cache.num_ids(layer) == 16
        assert tokens.cache.block_tokens(layer) == 1
        assert tokens.cache.block_bytes(layer) * 4 == blocks.cache.block_bytes(layer)


def test_formats_have_the_ids_of_their_places() -> None:
    assert [known.number for known in tk.FORMATS] == list(range(19))
    assert len({known.name for known in tk.FORMATS}) == 19


def test_a_format_is_chosen_by_id_as_by_name() -> None:
    tensors = per_layer(2, 8, 4, 2, 16)
    assert from_format(1, tensors).layers == from_format(SPLIT, tensors).layers
