# SPDX-License-Identifier: Apache-2.0
"""No byte is written by two parts of a scatter, wherever the parts of layers lie."""

from __future__ import annotations

import kv_kernels_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tutti_kv_kernels as tk

POISON = 0xA5


def scatter(cache: tk.PagedCache, ids: torch.Tensor, layers: torch.Tensor) -> torch.Tensor:
    """Scatter zeros with the right checksums."""
    slot_bytes = max(map(cache.block_bytes, range(len(cache.layers)))) * ids.shape[1]
    window = torch.zeros(len(layers) * slot_bytes, dtype=torch.uint8)
    sums = [
        reference.signed(reference.checksum(bytes(cache.block_bytes(layer) * ids.shape[1])))
        for layer in layers.tolist()
    ]
    return cache.scatter(
        window, torch.arange(len(layers)), slot_bytes, ids, torch.tensor(sums), layers=layers
    )


def one_run(storage: int = 0, offset: int = 0) -> tk.Plane:
    return tk.Plane(storage, offset, 64, 8, 64)


HEADS = tk.Plane(0, 0, 32, 8, 32, counts=(1, 1, 2), strides=(0, 0, 256))
BUFFER = bytearray(1024)
REFUSED: dict[str, tuple[list[torch.Tensor], list[list[tk.Plane]], list[list[int]]]] = {
    "a later run of another layer": ([torch.zeros(512)], [[one_run()], [HEADS]], [[4], [0]]),
    "K and V are the same memory": ([torch.zeros(512)], [[one_run(), one_run()]], [[3]]),
    "V begins inside K": ([torch.zeros(1024)], [[one_run(), one_run(offset=448)]], [[7, 0]]),
    "a layer that ends between them": (
        [torch.zeros(512)],
        [
            [one_run()],
            [tk.Plane(0, 8, 32, 2, 32)],
            [tk.Plane(0, 256, 32, 1, 32, counts=(1, 1, 2), strides=(0, 0, 64))],
        ],
        [[5], [0], [0]],
    ),
    "two storages over one buffer": (
        [torch.frombuffer(BUFFER, dtype=torch.uint8), torch.frombuffer(BUFFER, dtype=torch.uint8)[:512]],
        [[one_run()], [one_run(1)]],
        [[3], [3]],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_two_writers_of_a_byte_are_refused_before_anything_is_written(case: str) -> None:
    storages, layers, ids = REFUSED[case]
    storages = [storage.to(torch.uint8) for storage in storages]
    for storage in storages:
        storage.fill_(POISON)
    cache = tk.PagedCache(storages, layers)
    with pytest.raises(ValueError, match=r"shares memory with block .* a scatter writes each byte once"):
        scatter(cache, torch.tensor(ids), torch.arange(len(ids)))
    assert all(storage.eq(POISON).all() for storage in storages)


def test_blocks_of_such_layers_that_do_not_meet_are_written() -> None:
    cache = tk.PagedCache([torch.full((512,), POISON, dtype=torch.uint8)], [[one_run()], [HEADS]])
    assert scatter(cache, torch.tensor([[2], [0]]), torch.arange(2)).tolist() == [0, 0]
    assert cache.storages[0].view(16, 32).eq(0).all(1).nonzero().view(-1).tolist() == [0, 4, 5, 8]


@st.composite
def layer(draw: st.DrawFn) -> tk.Plane:
    """A plane of three blocks of one or two runs, anywhere in 256 bytes."""
    run, heads = draw(st.sampled_from([4, 8, 16])), draw(st.integers(1, 2))
    if draw(st.booleans()):
        inner = run * draw(st.integers(1, 3))
        outer = inner * heads + draw(st.sampled_from([0, 4, 8]))
    else:
        outer = run * draw(st.integers(1, 2))
        inner = outer * 3
    strides = (0, 0, inner if heads > 1 else 0)
    offset = draw(st.integers(0, 15)) * 4
    return tk.Plane(0, offset, outer, 3, run, counts=(1, 1, heads), strides=strides)


def written(plane: tk.Plane, block: int) -> set[int]:
    first = plane.offset + block * plane.block_stride
    starts = [first + head * plane.strides[2] for head in range(plane.counts[2])]
    return {start + byte for start in starts for byte in range(plane.run_bytes)}


@settings(max_examples=200)
@given(planes=st.lists(layer(), min_size=2, max_size=4), data=st.data())
def test_refused_if_and_only_if_a_byte_would_be_written_twice(
    planes: list[tk.Plane], data: st.DataObject
) -> None:
    cache = tk.PagedCache([torch.full((512,), POISON, dtype=torch.uint8)], [[plane] for plane in planes])
    ids = [data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2, unique=True)) for _ in planes]
    parts = [written(plane, block) for plane, row in zip(planes, ids, strict=True) for block in row]
    expected = set().union(*parts)
    if len(expected) < sum(map(len, parts)):
        with pytest.raises(ValueError, match="a scatter writes each b"):
            scatter(cache, torch.tensor(ids), torch.arange(len(planes)))
        expected = set()
    else:
        assert not scatter(cache, torch.tensor(ids), torch.arange(len(planes))).any()
    assert set(cache.storages[0].eq(0).nonzero().view(-1).tolist()) == expected
