# SPDX-License-Identifier: Apache-2.0
"""Plans in columns say exactly what the same plans in objects say, also in another process."""

import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine import SKIP_BLOCK, ChunkTransfer, LoadPlan, StorePlan
from tutti_engine.block_rows import BlockRows, ChunkBlocks, named_blocks, pick
from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.transfers import SumRows, Transfers

BLOCKS = st.integers(-1, 1 << 40)
CHUNK_IDS = st.none() | st.integers(0, 1 << 70) | st.text(max_size=3)


@st.composite
def transfers(draw):
    groups = draw(st.integers(1, 3))
    widths = [draw(st.integers(1, 3)) for _ in range(groups)]
    even = draw(st.booleans())
    found = []
    for number in range(draw(st.integers(0, 6))):
        rows = tuple(
            tuple(draw(BLOCKS) for _ in range(width if even else draw(st.sampled_from((0, width)))))
            for width in widths
        )
        chunk_id = number if even else draw(CHUNK_IDS)
        sums = () if chunk_id is None else (b"%08d" % number, b"x%07d" % number)
        found.append(
            ChunkTransfer(draw(st.binary(min_size=4, max_size=4 if even else 5)), chunk_id, rows, sums)
        )
    return tuple(found)


@given(transfers())
def test_a_plan_is_what_it_was_made_of(made):
    for plan in (LoadPlan(3, made), StorePlan(3, made)):
        assert tuple(plan.transfers) == made and len(plan.transfers) == len(made)
        assert plan.transfers == made and plan == type(plan)(3, made)
        assert [plan.transfers[n] for n in range(len(made))] == list(made)
        assert plan.transfers[1:] == made[1:]
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan and again.transfers == made
        assert plan.columns.lost() == [n for n, each in enumerate(made) if each.chunk_id is None]


@given(transfers(), st.data())
def test_rows_are_picked_as_they_are_named(made, data):
    columns = Transfers.of(made)
    positions = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1)) if made else []
    for group, rows in enumerate(columns.groups):
        assert list(pick(rows, positions)) == [made[n].block_ids[group] for n in positions]
        assert named_blocks(rows) == [
            block for each in made for block in each.block_ids[group] if block != -1
        ]


def test_rows_of_a_window_are_none_before_it():
    rows = BlockRows(array("q", (7, 8, SKIP_BLOCK, 9)), 2, 5, 2)
    assert list(rows) == [(), (), (7, 8), (-1, 9), ()] and list(rows.filled) == [2, 3]
    assert rows[-1] == () and rows[2:4] == [(7, 8), (-1, 9)]
    assert list(pick(rows, [1, 2])) == [(), (7, 8)]
    with pytest.raises(IndexError):
        rows[5]


@pytest.mark.parametrize(
    ("blocks", "width", "count", "first"), [(3, 2, 2, 0), (4, 2, 1, 0), (4, 2, 2, 1), (0, 0, 0, 0)]
)
def test_a_column_that_is_no_rows_is_refused(blocks, width, count, first):
    with pytest.raises(ValueError, match="no rows of"):
        BlockRows(array("q", range(blocks)), width, count, first)


def test_chunks_of_one_plan_have_as_many_groups():
    with pytest.raises(ValueError, match=r"groups"):
        LoadPlan(1, (ChunkTransfer(b"a", 1, ((1,),)), ChunkTransfer(b"b", 2, ((1,), (2,)))))
    with pytest.raises(ValueError, match="rows of blocks"):
        ChunkBlocks([b"a", b"b"], [BlockRows(array("q", (1,)), 1, 1)])


def test_checksums_are_told_by_rank_and_chunk():
    rows = SumRows(b"a0a1b0b1c0c1", 2, 2)
    assert list(rows) == [(b"a0", b"a1"), (b"b0", b"b1"), (b"c0", b"c1")]
    assert rows.parts([0, 1, 2], 1) == b"a1b1c1" and rows.parts([2, 0], 0) == b"c0a0"
    assert SumRows(b"aabbcc", 1, 2).parts([1, 2], 0) == b"bbcc"


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 60), st.booleans())
def test_facts_of_slots_are_read_and_set_one_by_one_or_in_stretches(slots, cut, neighbours):
    if neighbours:
        slots = list(range(3, 3 + len(slots) // 2)) + list(range(1, 2 + len(slots) // 4))
    runs = SlotRuns(slots)
    column, marks = array("q", range(100, 200)), bytearray(range(100))
    assert runs.take(column).tolist() == [100 + slot for slot in slots]
    assert runs.take(marks) == bytes(slots)
    assert runs.first(cut).slots == slots[:cut]
    assert runs.first(cut).take(marks) == bytes(slots[:cut])
    runs.set(column, array("q", range(len(slots))))
    for slot in range(100):
        values = [n for n, each in enumerate(slots) if each == slot]
        assert column[slot] in values if values else column[slot] == 100 + slot
