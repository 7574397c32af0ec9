# SPDX-License-Identifier: Apache-2.0
"""Every form of cache, gathered and scattered in every way, against plain indexing of its tensors.

TUTTI_KV_EXAMPLES=1000 makes a long run of it (25 cases a form and direction by default).
"""

from __future__ import annotations

import dataclasses
import os
import random
from dataclasses import dataclass

import kv_kernels_reference as reference
import pytest
import torch
from cache_samples import FORMS, POISON, Sample, Sizes
from hypothesis import given, settings
from hypothesis import strategies as st

import tutti_kv_kernels as tk

EXAMPLES = int(os.environ.get("TUTTI_KV_EXAMPLES", "25"))
DTYPES = [torch.uint8, torch.int8, torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]


@dataclass(frozen=True)
class Move:
    """Segments of a transfer over a cache: which layer, which ids, which tokens, which slot."""

    layers: list[int]
    ids: list[list[int]]
    tokens: list[range]
    slots: list[int]
    all_layers: bool
    threads: int

    def rows(self) -> torch.Tensor:
        """The ids as the operator takes them: once for all layers, or a row a segment."""
        rows = self.ids[: len(self.ids) // (max(self.layers) + 1)] if self.all_layers else self.ids
        return torch.tensor(rows)

    def options(self) -> dict[str, object]:
        shape = (max(self.layers) + 1, -1) if self.all_layers else (-1,)
        ranges = torch.tensor([[r.start, len(r)] for r in self.tokens])
        return {
            "slots": torch.tensor(self.slots).view(shape),
            "layers": None if self.all_layers else torch.tensor(self.layers),
            "token_ranges": ranges.view(*shape, 2),
            "num_threads": self.threads,
        }


@st.composite
def sizes(draw: st.DrawFn, *, rows: bool) -> Sizes:
    dtype = draw(st.sampled_from(DTYPES))
    row_count = draw(st.sampled_from([1, 1, 2, 3])) if rows else 1
    return Sizes(
        L=draw(st.integers(1, 3)),
        B=draw(st.integers(1, 5)),
        N=draw(st.sampled_from([1, 2, 3, 4])) * row_count,
        H=draw(st.sampled_from([1, 2, 3, 33])),
        C=draw(st.sampled_from([1, 3, 8, 20, 64, 136])),
        dtype=dtype,
        rows=row_count,
        pad=draw(st.sampled_from([0, 0, 5])) if row_count == 1 else 0,
        offset=draw(st.sampled_from([0, 0, 3])),
    )


@st.composite
def moves(draw: st.DrawFn, sample: Sample) -> Move:
    rng = random.Random(draw(st.integers(0, 2**32)))
    columns = draw(st.integers(1, min(3, sample.num_ids)))
    per_layer = draw(st.integers(1, max(1, sample.num_ids // columns)))
    all_layers = draw(st.booleans())
    ids = rng.sample(range(sample.num_ids), columns * per_layer)
    rows = [ids[i * columns : (i + 1) * columns] for i in range(per_layer)]
    if draw(st.booleans()):
        rows[rng.randrange(per_layer)][rng.randrange(columns)] = -1
    if all_layers:
        layers = [layer for layer in range(sample.sizes.L) for _ in range(per_layer)]
        rows = rows * sample.sizes.L
    else:
        layers = [rng.randrange(sample.sizes.L) for _ in range(per_layer)]
    total = columns * sample.tokens_per_id
    tokens = [range(total)] * len(rows)
    if draw(st.booleans()):
        cuts = [sorted(rng.choices(range(total + 1), k=2)) for _ in rows]
        tokens = [range(*cut) for cut in cuts]
    slots = rng.sample(range(len(rows) + 2), len(rows))
    return Move(layers, rows, tokens, slots, all_layers, draw(st.sampled_from([1, 2])))


def moved_tokens(sample: Sample, move: Move, segment: int, column: int) -> range:
    """The tokens of one block of a segment that the move takes."""
    count, whole = sample.tokens_per_id, move.tokens[segment]
    start = min(max(whole.start - column * count, 0), count)
    return range(start, min(max(whole.stop - column * count, start), count))


def copy_moved(target: Sample, source: Sample, move: Move, segment: int) -> None:
    for column, identity in enumerate(move.ids[segment]):
        if identity >= 0:
            tokens = moved_tokens(source, move, segment, column)
            target.copy_tokens(source, move.layers[segment], identity, tokens)


def packed_segment(source: Sample, move: Move, segment: int) -> bytes:
    """The segment's bytes: what is left out is zero."""
    zeros = dataclasses.replace(source, seed=None, fill=0)
    copy_moved(zeros, source, move, segment)
    blocks = [
        zeros.packed(move.layers[segment], identity)
        if identity >= 0
        else bytes(zeros.cache.block_bytes(move.layers[segment]))
        for identity in move.ids[segment]
    ]
    return b"".join(blocks)


def slot_bytes_of(sample: Sample, move: Move) -> int:
    return len(move.ids[0]) * max(map(sample.cache.block_bytes, range(sample.sizes.L))) + 5


def draw_sample(data: st.DataObject, name: str) -> Sample:
    form = FORMS[name]
    ids = data.draw(st.sampled_from(["blocks", "tokens"]), label="ids")
    return Sample(form, data.draw(sizes(rows=form.rows), label="sizes"), ids, seed=7)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_gather_packs_what_indexing_says(name: str, data: st.DataObject) -> None:
    sample = draw_sample(data, name)
    move = data.draw(moves(sample), label="move")
    slot_bytes = slot_bytes_of(sample, move)
    window = torch.full(((len(move.slots) + 2) * slot_bytes + 3,), POISON, dtype=torch.uint8)
    before = sample.memory()
    sums = sample.cache.gather(
        move.rows(), window, slot_bytes=slot_bytes, missing_blocks=True, **move.options()
    )
    expected = bytearray([POISON]) * window.numel()
    packed = [packed_segment(sample, move, segment) for segment in range(len(move.slots))]
    for slot, segment in zip(move.slots, packed, strict=True):
        expected[slot * slot_bytes : (slot + 1) * slot_bytes] = segment.ljust(slot_bytes, b"\0")
    assert window.numpy().tobytes() == bytes(expected)
    assert sums.view(-1).tolist() == [reference.signed(reference.checksum(segment)) for segment in packed]
    assert sample.memory() == before


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_scatter_writes_the_moved_tokens_of_good_segments_only(name: str, data: st.DataObject) -> None:
    source = draw_sample(data, name)
    move = data.draw(moves(source), label="move")
    whole = dataclasses.replace(move, tokens=[range(len(move.ids[0]) * source.tokens_per_id)] * len(move.ids))
    slot_bytes = slot_bytes_of(source, move)
    window = torch.full(((len(move.slots) + 2) * slot_bytes,), POISON, dtype=torch.uint8)
    outcomes = data.draw(
        st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=len(move.slots), max_size=len(move.slots))
    )
    sums = []
    for segment, (slot, outcome) in enumerate(zip(move.slots, outcomes, strict=True)):
        packed = bytearray(packed_segment(source, whole, segment))
        sums.append(reference.signed(reference.checksum(bytes(packed))))
        if outcome == tk.ScatterStatus.MISMATCH:
            packed[len(packed) // 2] ^= 4
        place = slice(slot * slot_bytes, slot * slot_bytes + len(packed))
        window[place] = torch.frombuffer(packed, dtype=torch.uint8)
    target = dataclasses.replace(source, seed=None)
    options = move.options()
    read_status = torch.tensor([int(outcome == 2) for outcome in outcomes], dtype=torch.int32)

    status = target.cache.scatter(
        window,
        block_ids=move.rows(),
        slot_bytes=slot_bytes,
        checksums=torch.tensor(sums).view(options["slots"].shape),
        read_status=read_status.view(options["slots"].shape),
        **options,
    )

    assert status.view(-1).tolist() == outcomes
    expected = dataclasses.replace(source, seed=None)
    for segment, outcome in enumerate(outcomes):
        if outcome == 0:
            copy_moved(expected, source, move, segment)
    assert target.memory() == expected.memory()


def test_a_gather_s_status_is_ok_where_ids_were_checked_before() -> None:
    pages = torch.arange(8 * 64).to(torch.uint8)
    cache = tk.PagedCache([pages], [[tk.Plane(0, 0, 64, 8, 64)]])
    window, ids = torch.zeros(512, dtype=torch.uint8), torch.tensor([[1, 2], [3, 4]])
    status = torch.full((2,), 9, dtype=torch.int32)
    cache.gather(ids, window, torch.tensor([1, 0]), 128, status=status)
    assert status.tolist() == [tk.ScatterStatus.OK] * 2
    with pytest.raises(ValueError, match="status must have one entry for each of the 2 slots"):
        cache.gather(ids, window, torch.tensor([1, 0]), 128, status=status[:1])
