# SPDX-License-Identifier: Apache-2.0
"""Columns of a wave, segments that find no room, and waves that end after everybody has given up."""

import itertools
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine import ChunkTransfer, StorePlan
from tutti_engine.columns import unpack_words
from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.execution.transfer import StoreJob
from tutti_engine.execution.wave_keeper import WaveKeeper
from tutti_engine.execution.waves import Wave


class Handle:
    done = False

    def poll(self):
        return self.done

    def wait(self, deadline):
        return self.done

    def status(self):
        return [0]


def flying(plan, bank, layer):
    handle = Handle()
    wave = Wave(plan, bank, [0], [bank.acquire(1, 0.0)], (layer,))
    wave.submit(lambda batch: handle)
    return wave, handle


def test_a_place_is_told_of_once_all_layers_that_were_late_have_ended():
    told = []
    keeper = WaveKeeper(lambda plan, positions: told.append((plan.plan_id, positions)))
    plan = StorePlan(7, (ChunkTransfer(b"k", 0, ((0,),)),))
    bank = SlotBank(0, 2)
    first, first_handle = flying(plan, bank, 0)
    second, second_handle = flying(plan, bank, 1)
    assert not keeper.dismiss(first) and not keeper.dismiss(second)
    first_handle.done = True
    keeper.reclaim()
    assert (told, bank.busy) == ([], 1), "the other layer may still be written"
    second_handle.done = True
    keeper.reclaim()
    assert (told, bank.busy) == ([(7, [0])], 0)


def test_a_wave_that_is_over_gives_its_slots_back_at_once():
    told = []
    keeper = WaveKeeper(lambda plan, positions: told.append(positions))
    bank = SlotBank(0, 1)
    wave, handle = flying(StorePlan(1, (ChunkTransfer(b"k", 0, ((0,),)),)), bank, 0)
    handle.done = True
    assert keeper.dismiss(wave)
    assert (told, bank.busy) == ([], 0)


class Recorder:
    """Takes what its verdict lets it take."""

    def __init__(self, *verdicts):
        self.verdicts = list(verdicts)
        self.batches = []

    def __call__(self, batch):
        self.batches.append(list(zip(batch.chunk_ids, batch.layers, batch.slots, strict=True)))
        handle = Handle()
        handle.done = True
        codes = self.verdicts.pop(0)
        handle.status = lambda: codes
        return handle


def wave_of(chunk_ids, layers, bank):
    plan = StorePlan(1, tuple(ChunkTransfer(b"k", each, ((i, i + 50),)) for i, each in enumerate(chunk_ids)))
    slots = [bank.acquire(len(layers), 0.0) for _ in chunk_ids]
    return Wave(plan, bank, range(len(chunk_ids)), slots, layers)


@pytest.mark.parametrize("chunk_ids", [(5, 9), ("a", 9), (1 << 70, "b"), ((), None)])
def test_a_batch_goes_chunk_by_chunk_and_the_mover_layer_by_layer(chunk_ids):
    wave = wave_of(chunk_ids, (2, 3, 7), SlotBank(10, 6))
    submit = Recorder([0] * 6)
    wave.submit(submit)
    one, other = chunk_ids
    assert submit.batches == [
        [(one, 2, 10), (one, 3, 11), (one, 7, 12), (other, 2, 13), (other, 3, 14), (other, 7, 15)]
    ]
    everything = wave.choose({})
    assert list(everything.slots) == [10, 13, 11, 14, 12, 15]
    assert everything.block_ids == [(0, 50), (1, 51)]
    rest = wave.choose({0: 5})
    assert (rest.positions, list(rest.slots), rest.block_ids) == ([1], [13, 14, 15], [(1, 51)])


@given(
    count=st.integers(1, 4),
    width=st.integers(1, 4),
    refusals=st.lists(st.sets(st.integers(0, 15)), max_size=4),
    failures=st.dictionaries(st.integers(0, 15), st.sampled_from([5, 28])),
)
def test_refused_segments_are_offered_again_and_no_other(count, width, refusals, failures):
    wave = wave_of(range(count), range(width), SlotBank(0, 16))
    left = [(chunk, layer, chunk * width + layer) for chunk in range(count) for layer in range(width)]
    offered = []

    def submit(batch):
        segments = list(zip(batch.chunk_ids, batch.layers, batch.slots, strict=True))
        offered.append(segments)
        refused = refusals.pop(0) if refusals else ()
        handle = Handle()
        handle.done = True
        codes = [11 if slot in refused else failures.get(slot, 0) for _, _, slot in segments]
        handle.status = lambda: codes
        left[:] = [segment for segment, code in zip(segments, codes, strict=True) if code == 11]
        return handle

    expected = list(left)
    wave.submit(submit)
    waits = []
    errors = wave.finish(submit, waits.append, time.monotonic() + 3600)
    of_chunk = {
        c: {failures.get(s, 0) for s in range(c * width, (c + 1) * width)} - {0} for c in range(count)
    }
    assert {chunk for chunk, codes in of_chunk.items() if codes} == set(errors)
    assert all(code in of_chunk[chunk] for chunk, code in errors.items())
    assert left == [] and offered[0] == expected
    assert len(waits) == len(offered) - 1
    for before, after in itertools.pairwise(offered):
        assert set(after) < set(before) or after == before


@given(
    layers=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    positions=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True).map(sorted),
    as_list=st.booleans(),
)
def test_checksums_of_any_layers_and_chunks_end_where_they_belong(layers, positions, as_list):
    job = StoreJob(StorePlan(1, tuple(ChunkTransfer(b"k", n, ((0,),)) for n in range(8))), 6)
    sums = array("Q", (1000 * position + layer + 1 for layer in layers for position in positions))
    job.note(layers, positions, list(sums) if as_list else sums)
    for position, row in enumerate(job.result().checksums):
        expected = [1000 * position + n + 1 if n in layers and position in positions else 0 for n in range(6)]
        assert list(unpack_words(row)) == expected
