# SPDX-License-Identifier: Apache-2.0
"""Addresses of pages: right for every layout that is accepted, and a clear refusal of every other tensor."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tutti_kv_kernels as tk

LOGICAL = "LBHNC"
DTYPES = [torch.int8, torch.bfloat16, torch.float32]


def allocate(
    order: str, sizes: dict[str, int], dtype: torch.dtype, offset: int = 0
) -> tuple[torch.Tensor, ...]:
    """A cache in the physical ``order``: (its memory as a dense tensor, its logical view [L, B, H, N, C])."""
    shape = [sizes[letter] for letter in order]
    count = torch.Size(shape).numel()
    raw = torch.randint(-128, 128, ((count + offset) * dtype.itemsize,), dtype=torch.int8)
    physical = raw.view(dtype)[offset:].view(shape)
    return physical, physical.permute([order.index(letter) for letter in LOGICAL])


def page_bytes_of(sizes: dict[str, int], dtype: torch.dtype) -> int:
    return sizes["H"] * sizes["N"] * sizes["C"] * dtype.itemsize


@given(
    order=st.sampled_from(["LBHNC", "LBNHC", "BLHNC", "BLNHC"]),
    sizes=st.fixed_dictionaries(
        {"L": st.integers(1, 3), "B": st.integers(1, 4)} | dict.fromkeys("HNC", st.integers(1, 5))
    ),
    dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 9),
    data=st.data(),
)
def test_addresses_are_those_of_the_physical_order(
    order: str, sizes: dict[str, int], dtype: torch.dtype, offset: int, data: st.DataObject
) -> None:
    physical, logical = allocate(order, sizes, dtype, offset)
    layer = data.draw(st.integers(0, sizes["L"] - 1))
    page_bytes = page_bytes_of(sizes, dtype)
    names = {"LBHNC": ["LBHNC", "HND"], "LBNHC": ["LBNHC", "NHD"]}.get(order, [order])
    layout = tk.PagedLayout.from_kv_cache(
        logical[layer],
        kv_cache_layout=data.draw(st.sampled_from(names)),
        page_bytes=page_bytes,
        num_blocks=sizes["B"],
        layer_name=f"layers.{layer}",
    )
    storage = tk.storage_bytes(logical[layer])
    for block in range(sizes["B"]):
        page = physical[layer, block] if order[0] == "L" else physical[block, layer]
        start = layout.storage_offset + block * layout.block_stride
        assert storage[start : start + page_bytes].equal(page.contiguous().view(torch.uint8).view(-1))


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
def test_a_block_of_several_rows_is_one_page(order: str) -> None:
    sizes = {"L": 2, "B": 6, "H": 2, "N": 4, "C": 8}
    physical, logical = allocate(order, sizes, torch.bfloat16)
    page_bytes = 2 * page_bytes_of(sizes, torch.bfloat16)
    layout = tk.PagedLayout.from_kv_cache(
        logical[1], kv_cache_layout=order, page_bytes=page_bytes, num_blocks=3
    )
    assert layout.num_blocks == 3
    start = layout.storage_offset + 2 * layout.block_stride
    page = tk.storage_bytes(logical)[start : start + page_bytes]
    assert page.equal(physical[1, 4:6].contiguous().view(torch.uint8).view(-1))


def test_a_storage_that_shrank_under_its_view_is_refused() -> None:
    tensor = torch.zeros(8, 2, 4, 16, dtype=torch.bfloat16)
    tensor.untyped_storage().resize_(2047)
    with pytest.raises(tk.LayoutError, match="ends at byte 2048, beyond the storage of 2047 bytes"):
        tk.PagedLayout.from_kv_cache(tensor, kv_cache_layout="LBHNC", page_bytes=256, num_blocks=8)


def test_three_dimensions_and_one_head_are_accepted() -> None:
    latent = torch.zeros(4, 16, 576, dtype=torch.bfloat16)
    expected = tk.PagedLayout(0, 18432, 18432, 4)
    for tensor in (latent, latent.unsqueeze(1)):
        for name in ("LBHNC", "NHD"):
            found = tk.PagedLayout.from_kv_cache(tensor, kv_cache_layout=name, page_bytes=18432, num_blocks=4)
            assert found == expected


BASE = torch.zeros(8, 2, 4, 16, dtype=torch.bfloat16)
SHARED = torch.zeros(8 * 2, 2, 4, 16, dtype=torch.bfloat16)
WIDE = torch.zeros(8, 2, 4, 32, dtype=torch.bfloat16)

REFUSED = {
    "unknown layout": (BASE, {"kv_cache_layout": "SHUFFLE"}, "never guessed from a shape"),
    "no layout": (BASE, {"kv_cache_layout": None}, "never guessed from a shape"),
    "heads outside blocks": (BASE, {"kv_cache_layout": "LHBNC"}, "in LHBNC a page is not one run"),
    "layers inside heads": (BASE, {"kv_cache_layout": "BHLNC"}, "in BHLNC a page is not one run"),
    "strides of another order": (
        BASE,
        {"kv_cache_layout": "LBNHC"},
        "in the order HN, the layout's name says NH",
    ),
    "permuted under an unpermuted name": (
        BASE.transpose(1, 2),
        {},
        "in the order NH, the layout's name says HN",
    ),
    "K and V half a tensor apart": (torch.zeros(2, 8, 4, 2, 16), {}, r"must be \[rows, H, N, C\]"),
    "two blocks that look like K and V": (
        torch.zeros(2, 2, 4, 2, 16, dtype=torch.bfloat16),
        {"num_blocks": 2, "page_bytes": 512},
        r"must be \[rows, H, N, C\]",
    ),
    "two dimensions": (torch.zeros(8, 64), {}, r"must be \[rows, H, N, C\]"),
    "rows no multiple of blocks": (
        BASE,
        {"num_blocks": 3},
        "first dimension, 8, must be a multiple of num_blocks",
    ),
    "fewer rows than blocks": (
        BASE,
        {"num_blocks": 16},
        "first dimension, 8, must be a multiple of num_blocks",
    ),
    "no rows": (BASE[:0], {}, "first dimension, 0,"),
    "other page size": (BASE, {"page_bytes": 512}, "page_bytes must be 1 x 256"),
    "padded page size": (BASE, {"page_bytes": 288}, "page_bytes must be 1 x 256"),
    "gaps inside a page": (WIDE[..., :16], {}, "must be dense"),
    "gaps between heads": (SHARED.view(8, 4, 4, 16)[:, ::2], {}, "must be dense"),
    "one value repeated": (BASE[:, :1].expand(8, 2, 4, 16), {}, "must be dense"),
    "rows apart in a block": (
        SHARED[::2],
        {"num_blocks": 4, "page_bytes": 512},
        "must be adjacent: row stride 512 bytes, row 256 bytes",
    ),
    "one row repeated": (BASE[:1].expand(8, 2, 4, 16), {}, "block_stride"),
    "overlapping rows": (BASE.as_strided((4, 2, 4, 16), (64, 64, 16, 1)), {"num_blocks": 4}, "pages overlap"),
    "sparse": (torch.zeros(8, 4, 4).to_sparse(), {}, "strided tensor"),
    "page_bytes no int": (BASE, {"page_bytes": 256.0}, "must be an int of at least 1, got 256.0"),
    "num_blocks zero": (BASE, {"num_blocks": 0}, "num_blocks must be an int of at least 1, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_says_what_and_why(case: str) -> None:
    tensor, changes, rule = REFUSED[case]
    arguments = {"kv_cache_layout": "LBHNC", "page_bytes": 256, "num_blocks": 8} | changes
    with pytest.raises(tk.LayoutError, match=rule) as caught:
        tk.PagedLayout.from_kv_cache(tensor, layer_name="model.layers.7.attn", **arguments)
    message = str(caught.value)
    for fact in (
        "model.layers.7.attn",
        str(tuple(tensor.shape)),
        str(tensor.dtype),
        repr(arguments["kv_cache_layout"]),
    ):
        assert fact in message
    if tensor.layout is torch.strided:
        assert str(tensor.stride()) in message


GOOD = {"storage_offset": 0, "block_stride": 512, "page_bytes": 256, "num_blocks": 4}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("storage_offset", -1),
        ("storage_offset", 1.0),
        ("block_stride", 255),
        ("block_stride", "512"),
        ("page_bytes", 0),
        ("page_bytes", -256),
        ("page_bytes", True),
        ("num_blocks", 0),
        ("num_blocks", None),
    ],
)
def test_fields_are_checked(field: str, value: object) -> None:
    with pytest.raises(tk.LayoutError, match=re.escape(field)):
        tk.PagedLayout(**GOOD | {field: value})


def test_layout_is_a_value() -> None:
    layout = tk.PagedLayout(**GOOD)
    assert layout == tk.PagedLayout(0, 512, 256, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.page_bytes = 1
    assert issubclass(tk.LayoutError, ValueError)


def test_check_allows_the_last_page_to_end_with_the_storage() -> None:
    layout = tk.PagedLayout(storage_offset=10, block_stride=512, page_bytes=256, num_blocks=4)
    layout.check(10 + 3 * 512 + 256)
    with pytest.raises(tk.LayoutError, match="ends at byte 1802, beyond the storage of 1801 bytes"):
        layout.check(1801)


def test_storage_bytes_is_the_whole_storage_without_a_copy() -> None:
    tensor = torch.zeros(4, 6, dtype=torch.float32)
    view = tensor[2:, 1:3]
    flat = tk.storage_bytes(view)
    assert (flat.dtype, tuple(flat.shape)) == (torch.uint8, (96,))
    flat.fill_(1)
    assert tensor.view(torch.uint8).eq(1).all()
