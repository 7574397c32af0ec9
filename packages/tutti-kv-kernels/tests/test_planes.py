# SPDX-License-Identifier: Apache-2.0
"""Transfers of planes with any strides, against loops over single bytes; and calls that are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kv_kernels_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tutti_kv_kernels as tk
from tutti_kv_kernels.plane import BLOCK_IS_TOKEN, PLANE_COLUMNS, planes_table

OPS = torch.ops.tutti_kv_kernels
POISON = 0xA5


@st.composite
def planes(draw: st.DrawFn, num_blocks: int, storage: int, offset: int) -> tk.Plane:
    """A plane whose dimensions lie in memory in any order, with any gaps."""
    run_bytes = draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 256, 500, 512, 520, 4096, 5000])))
    counts = [draw(st.integers(1, 3 if run_bytes <= 64 else 1 + (dim == 2))) for dim in range(3)]
    reach = run_bytes
    strides = {}
    for dim in draw(st.permutations(["block", 0, 1, 2])):
        count = num_blocks if dim == "block" else counts[dim]
        strides[dim] = reach + draw(st.sampled_from([0, 0, 1, 8, 30]))
        reach = strides[dim] * (count - 1) + reach
    return tk.Plane(
        storage,
        offset,
        strides["block"],
        num_blocks,
        run_bytes,
        (counts[0], counts[1], counts[2]),
        (strides[0], strides[1], strides[2]),
    )


def bytes_of(plane: tk.Plane, block: int) -> list[int]:
    """Offsets of a block's bytes in packed order, by counting."""
    first = plane.offset + block * plane.block_stride
    outer, middle, inner = (range(count) for count in plane.counts)
    return [
        first + i * plane.strides[0] + j * plane.strides[1] + k * plane.strides[2] + byte
        for i in outer
        for j in middle
        for k in inner
        for byte in range(plane.run_bytes)
    ]


@settings(max_examples=40)
@given(data=st.data(), num_blocks=st.integers(1, 3), threads=st.sampled_from([1, 2]))
def test_planes_with_any_strides(data: st.DataObject, num_blocks: int, threads: int) -> None:
    """Two storages; one layer has planes in both, and one of them follows another plane in memory."""
    first = data.draw(planes(num_blocks, 0, data.draw(st.integers(0, 20))))
    end = max(bytes_of(first, num_blocks - 1)) + 1
    second = replace(first, offset=end + data.draw(st.integers(0, 9)), run_bytes=first.run_bytes)
    layers = [[first, data.draw(planes(num_blocks, 1, 3))], [second]]
    needed = [0, 0]
    for plane in (first, second, layers[0][1]):
        needed[plane.storage] = max(needed[plane.storage], *bytes_of(plane, num_blocks - 1), 0)
    rng = random.Random(data.draw(st.integers(0, 999)))
    memory = [bytearray(rng.randbytes(size + 1)) for size in needed]
    storages = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in memory]
    cache = tk.PagedCache(storages, layers)
    ids = [[block] for block in rng.sample(range(num_blocks), num_blocks)]
    slots = rng.sample(range(2 * num_blocks), 2 * num_blocks)
    slot_bytes = max(cache.block_bytes(0), cache.block_bytes(1)) + 3
    window = torch.full((2 * num_blocks * slot_bytes,), POISON, dtype=torch.uint8)
    places = torch.tensor(slots).view(2, -1)

    checksums = cache.gather(torch.tensor(ids), window, places, slot_bytes, num_threads=threads)

    for segment, slot in enumerate(slots):
        layer, row = divmod(segment, num_blocks)
        packed = bytes(
            memory[plane.storage][at] for plane in layers[layer] for at in bytes_of(plane, ids[row][0])
        )
        found = window[slot * slot_bytes :][:slot_bytes].numpy().tobytes()
        assert found == packed.ljust(slot_bytes, b"\0")
        assert checksums.view(-1)[segment] == reference.signed(reference.checksum(packed))

    for storage in storages:
        storage.fill_(POISON)
    status = cache.scatter(window, places, slot_bytes, torch.tensor(ids), checksums, num_threads=threads)
    assert not status.any()
    moved = {
        (plane.storage, at)
        for layer in layers
        for plane in layer
        for block in range(num_blocks)
        for at in bytes_of(plane, block)
    }
    for index, (storage, part) in enumerate(zip(storages, memory, strict=True)):
        expected = bytes(byte if (index, at) in moved else POISON for at, byte in enumerate(part))
        assert storage.numpy().tobytes() == expected


GOOD = tk.Plane(0, 0, 64, 4, 16, counts=(1, 1, 2), strides=(0, 0, 32), token_dim=2)
REFUSED_PLANES: dict[str, tuple[list[list[tk.Plane]], str]] = {
    "storage": ([[replace(GOOD, storage=1)]], "planes.0.: storage must be the index of one of the storages"),
    "offset": ([[replace(GOOD, offset=-1)]], "planes.0.: offset must be at least 0, got -1"),
    "no blocks": ([[replace(GOOD, num_blocks=0)]], "a count must be positive, got 0"),
    "no run": ([[replace(GOOD, run_bytes=0)]], "run_bytes must be positive, got 0"),
    "negative stride": ([[replace(GOOD, strides=(0, 0, -32))]], "a stride must be at least 0, got -32"),
    "token dimension": ([[replace(GOOD, token_dim=4)]], "token_dim must be -1 to 3, got 4"),
    "first token": ([[replace(GOOD, first_token=-1)]], r"first_token must be 0 to 2\^40, got -1"),
    "first token of a token": (
        [[replace(GOOD, token_dim=BLOCK_IS_TOKEN, first_token=2)]],
        "first_token must be 0 where a block is one token, got 2",
    ),
    "ids of two kinds": (
        [[replace(GOOD, token_dim=BLOCK_IS_TOKEN), GOOD]],
        "planes of layer 0 must have ids that count alike: token_dim 3 in all or in none, got 3 and 2",
    ),
    "runs that overlap": (
        [[replace(GOOD, strides=(0, 0, 15))]],
        "planes.0. overlaps itself: it takes 2 steps of 15 bytes over parts of 16 bytes",
    ),
    "blocks that overlap": (
        [[GOOD], [replace(GOOD, block_stride=47)]],
        "planes.1. overlaps itself: it takes 4 steps of 47 bytes over parts of 48 bytes",
    ),
    "beyond": (
        [[replace(GOOD, offset=17)]],
        "the layout reaches beyond pages: planes.0. has 4 blocks, .* from offset 17, but .* has 256 bytes",
    ),
    "uneven": (
        [[GOOD, replace(GOOD, num_blocks=3)]],
        "planes of layer 0 must have equally many blocks, got 4 and 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED_PLANES)
def test_refused_planes(case: str) -> None:
    layers, rule = REFUSED_PLANES[case]
    storages = [torch.zeros(256, dtype=torch.uint8)]
    with pytest.raises(tk.LayoutError, match=rule):
        tk.PagedCache(storages, layers)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        (torch.zeros(0, PLANE_COLUMNS, dtype=torch.int64), "planes must have at least one row"),
        (planes_table([[GOOD]])[:, :-1].contiguous(), r"planes must have 16 columns, .* shape \[1, 15\]"),
        (planes_table([[GOOD]]).int(), "planes must be a contiguous 2-D Long tensor"),
        (
            planes_table([[GOOD], [GOOD]]).flip(0),
            r"planes\[0\]: layer must be sorted from 0 without gaps, got 1",
        ),
        (planes_table([[GOOD], [GOOD], [GOOD]])[::2].contiguous(), r"planes\[1\]: layer must be sorted"),
        (planes_table([[GOOD]]) - torch.eye(1, PLANE_COLUMNS).long(), "from 0 without gaps, got -1"),
    ],
)
def test_refused_tables(table: torch.Tensor, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        OPS.check_planes(table, [256])


def cache_and_window() -> dict[str, Any]:
    storage = torch.arange(512).to(torch.uint8)
    cache = tk.PagedCache([storage], [[GOOD], [replace(GOOD, offset=256)]])
    return {
        "cache": cache,
        "block_ids": torch.tensor([[0, 1], [2, 3]]),
        "window": torch.full((4 * 64,), POISON, dtype=torch.uint8),
        "slots": torch.tensor([[0, 1], [2, 3]]),
        "slot_bytes": 64,
        "checksums": torch.zeros(2, 2, dtype=torch.int64),
    }


OPAQUE = tk.PagedCache([torch.zeros(512, dtype=torch.uint8)], [[replace(GOOD, token_dim=-1)]] * 2)
REFUSED_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "slots of one layer": (
        {"slots": torch.tensor([0, 1])},
        r"slots must be \[2, n\] where all layers are moved",
    ),
    "layers beyond": ({"layers": (1, 2)}, "layers must be 0 to 1, got 2"),
    "slots of some layers": ({"layers": [1]}, r"slots must be \[1, n\] where layers is \[1\], .* \[2, 2\]"),
    "layer as int": ({"layers": 2}, "layers must be 0 to 1, got 2"),
    "layer beyond": (
        {"layers": torch.tensor([0, 2]), "slots": torch.tensor([0, 1])},
        r"layers\[1\] is 2, outside 0 to 1",
    ),
    "negative layer": (
        {"layers": torch.tensor([0, -1]), "slots": torch.tensor([0, 1])},
        r"layers\[1\] is -1, outside 0 to 1",
    ),
    "few layers": (
        {"layers": torch.tensor([0]), "slots": torch.tensor([0, 1])},
        r"layers must have one entry for each of the 2 slots, got a Long tensor of shape \[1\]",
    ),
    "rows for all layers": (
        {"block_ids": torch.tensor([[0, 1]])},
        r"block_ids must have one row for each of the 4 slots / 2 repeats, got a .* shape \[1, 2\]",
    ),
    "segment larger than its slot": (
        {"slot_bytes": 63},
        "slot_bytes 63 is too small for a segment of 2 blocks of 32 bytes",
    ),
    "tokens beyond": (
        {"token_ranges": torch.tensor([[[0, 4]] * 2, [[0, 4], [1, 4]]])},
        r"token_ranges\[3\] is 1, 4 \(first token, tokens\), outside the segment's 4 tokens",
    ),
    "negative tokens": (
        {"token_ranges": torch.tensor([[[0, -1]] * 2] * 2)},
        r"token_ranges\[0\] is 0, -1",
    ),
    "huge tokens": (
        {"token_ranges": torch.tensor([[[2**62, 2**62]] * 2] * 2)},
        rf"token_ranges\[0\] is {2**62}, {2**62}",
    ),
    "tokens of few": (
        {"token_ranges": torch.tensor([[0, 1]])},
        r"token_ranges must have two numbers for each of the 4 slots, got a Long tensor of shape \[1, 2\]",
    ),
    "tokens of opaque blocks": (
        {"cache": OPAQUE, "token_ranges": torch.tensor([[[0, 1]] * 2] * 2)},
        r"token_ranges\[0\] cannot be applied: tokens do not divide the blocks of layer 0",
    ),
    "meta slots": ({"slots": torch.zeros(2, 2, dtype=torch.int64, device="meta")}, "must be on one device"),
}


@pytest.mark.parametrize("case", REFUSED_CALLS)
def test_refused_calls_write_nothing(case: str) -> None:
    changes, rule = REFUSED_CALLS[case]
    given_arguments = cache_and_window() | changes
    cache = given_arguments.pop("cache")
    window, memory = given_arguments["window"].clone(), cache.storages[0].clone()
    for call in (cache.gather, cache.scatter):
        with pytest.raises(ValueError, match=rule):
            call(**given_arguments)
        assert given_arguments["window"].equal(window)
        assert cache.storages[0].equal(memory)


@pytest.mark.parametrize("layers", [(2, 0), [1], range(3)])
def test_some_layers_in_one_call_are_those_layers_one_by_one(layers: Sequence[int]) -> None:
    memory = torch.randint(0, 256, (3 * 256,), dtype=torch.uint8)
    cache = tk.PagedCache([memory], [[replace(GOOD, offset=256 * layer)] for layer in range(3)])
    ids, count = torch.tensor([[3, 1], [0, 2]]), 2 * len(layers)
    slots = torch.arange(count).view(-1, 2)
    window, expected = torch.zeros(2, 64 * 6, dtype=torch.uint8)
    sums = cache.gather(ids, window, slots, 64, layers=layers)
    for row, layer in enumerate(layers):
        assert sums[row].equal(cache.gather(ids, expected, slots[row], 64, layers=layer))
    assert window.equal(expected)
    before = memory.clone()
    memory.fill_(POISON)
    assert cache.scatter(window, slots, 64, ids, sums, layers=layers).tolist() == [[0, 0]] * len(layers)
    runs = memory.view(3, 8, 32)
    assert runs[list(layers), :, :16].equal(before.view(3, 8, 32)[list(layers), :, :16])
    assert (runs == POISON).sum() >= 3 * 128 + (3 - len(layers)) * 128


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"read_status": torch.zeros(2, 2, dtype=torch.int64)},
            "read_status must be a contiguous 1-D Int tensor",
        ),
        (
            {"read_status": torch.zeros(3, dtype=torch.int32)},
            "read_status must have one entry for each of the 4",
        ),
        ({"status": torch.zeros(2, 2, dtype=torch.bool)}, "status must be a contiguous 1-D Int tensor"),
    ],
)
def test_refused_statuses(changes: dict[str, Any], rule: str) -> None:
    given_arguments = cache_and_window()
    cache = given_arguments.pop("cache")
    with pytest.raises(ValueError, match=rule):
        cache.scatter(**given_arguments, **changes)


def test_window_in_any_storage_of_the_cache_is_refused() -> None:
    memory = torch.zeros(1024, dtype=torch.uint8)
    cache = tk.PagedCache([torch.zeros(256, dtype=torch.uint8), memory[:512]], [[GOOD]])
    with pytest.raises(
        ValueError, match=r"window \(513 bytes\) overlaps pages \(512 bytes\) in storages\[1\]"
    ):
        cache.gather(torch.tensor([[0]]), memory[511:], torch.tensor([0]), 64)
    cache.gather(torch.tensor([[0]]), memory[512:], torch.tensor([0]), 64)


def test_missing_blocks_must_be_allowed_in_a_gather() -> None:
    given_arguments = cache_and_window()
    cache = given_arguments.pop("cache")
    given_arguments["block_ids"] = torch.tensor([[0, -1], [2, 3]])
    with pytest.raises(ValueError, match=r"block_ids\[0, 1\] is -1, outside 0 to 3"):
        cache.gather(**given_arguments)
    given_arguments["block_ids"][0, 1] = -2
    with pytest.raises(ValueError, match=r"block_ids\[0, 1\] is -2, outside -1 to 3 \(-1 skips a block\)"):
        cache.gather(**given_arguments, missing_blocks=True)


def test_every_negative_entry_of_a_slot_mapping_is_a_gap() -> None:
    tensor = torch.arange(1, 97, dtype=torch.uint8).view(12, 1, 8)
    cache = tk.PagedCache.from_format(5, [tensor], num_blocks=3, block_size=4, ids="tokens")
    mapping, window = torch.tensor([[7, -5, -1, 2]]), torch.full((32,), POISON, dtype=torch.uint8)
    checksums = cache.gather(mapping, window, torch.tensor([0]), 32, missing_blocks=True)
    assert window.view(4, 8)[:, 0].tolist() == [57, 0, 0, 17]
    tensor.zero_()
    assert cache.scatter(window, torch.tensor([0]), 32, mapping, checksums).tolist() == [0]
    assert tensor.view(12, 8)[:, 0].nonzero().view(-1).tolist() == [2, 7]


@pytest.mark.parametrize("error", [5, -5])
def test_an_error_of_either_sign_says_that_a_slot_was_not_read(error: int) -> None:
    given_arguments = cache_and_window()
    cache = given_arguments.pop("cache")
    given_arguments["checksums"] = cache.gather(**given_arguments)
    read = torch.tensor([[0, error], [0, 0]], dtype=torch.int32)
    assert cache.scatter(**given_arguments, read_status=read).tolist() == [[0, 2], [0, 0]]
