# SPDX-License-Identifier: Apache-2.0
"""Lists in arrays against plain lists."""

from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.policies.slot_lists import SlotLists

SLOTS, LISTS = 6, 3


def walk(lists, which):
    found, slot, head = [], lists.newer[lists.head(which)], lists.head(which)
    while slot != head:
        found.append(slot)
        slot = lists.newer[slot]
    return found


@given(
    st.lists(st.tuples(st.sampled_from(["push", "above", "remove"]), st.integers(0, 2), st.integers(0, 5)))
)
def test_any_sequence_of_calls_does_what_it_does_to_plain_lists(calls):
    lists, model = SlotLists(SLOTS, LISTS), [[] for _ in range(LISTS)]
    for call, which, slot in calls:
        for each in model:
            if slot in each:
                each.remove(slot)
        lists.remove(slot)
        if call == "push":
            lists.push_newest(which, slot)
            model[which].append(slot)
        elif call == "above":
            below = model[which][0] if model[which] else lists.head(which)
            lists.push_above(below, slot)
            model[which].insert(1 if model[which] else 0, slot)
        for number in range(LISTS):
            assert walk(lists, number) == model[number]
            assert lists.oldest(number) == (model[number][0] if model[number] else -1)
        assert lists.holds(slot) == (call != "remove")


def test_fill_takes_a_whole_order_at_once():
    lists = SlotLists(SLOTS, LISTS)
    lists.fill(1, [3, 0, 5])
    lists.push_newest(1, 2)
    assert walk(lists, 1) == [3, 0, 5, 2]
