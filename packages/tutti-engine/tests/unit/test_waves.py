# SPDX-License-Identifier: Apache-2.0
"""Slots and places of waves that end after everybody has given up."""

from tutti_engine import ChunkTransfer, StorePlan
from tutti_engine.ring_window import SlotBank
from tutti_engine.waves import Run, Wave, WaveKeeper


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
    wave = Wave(plan, bank, [Run(0, bank.acquire(1, 0.0))], (layer,))
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
