# SPDX-License-Identifier: Apache-2.0
"""What is known of prompts run by run is what a count of each single chunk would say."""

import hashlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.shared.prompt_tree import PromptTree, shared_length, take_apart

MOST = 3


def chained(words):
    """Keys of a prompt whose chunks have these contents."""
    keys, parent = [], b""
    for word in words:
        parent = hashlib.blake2b(parent + bytes([word]), digest_size=8).digest()
        keys.append(parent)
    return keys


prompts = st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=25)


def known(tree, keys):
    """What a tree says, chunk by chunk."""
    found, at = [], 0
    for run in tree.runs(keys):
        found += [(run.prompts, run.held_until)] * (run.end - at)
        at = run.end
    assert at <= len(keys)
    return found + [(0, 0.0)] * (len(keys) - at)


@given(prompts, st.lists(st.integers(0, 1), max_size=9), st.data())
def test_each_chunk_has_its_own_count_and_time(noted, asked, data):
    tree, counts, held = PromptTree(MOST, 1 << 20), Counter(), {}
    for number, words in enumerate(noted):
        keys = chained(words)
        tree.note(keys)
        counts.update(keys)
        if keys and data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(keys) - 1))
            tree.hold(keys, start, number + 1.0)
            held |= dict.fromkeys(keys[start:], number + 1.0)
    for words in (*noted, asked):
        keys = chained(words)
        assert known(tree, keys) == [(min(counts[key], MOST), held.get(key, 0.0)) for key in keys]


@given(prompts)
def test_what_is_over_does_not_keep_runs_apart(noted):
    tree = PromptTree(MOST, 1 << 20)
    keys = chained([0] * 200)
    for length in range(1, 201):
        tree.note(keys[:length], now=float(length))
        tree.hold(keys[:length], length - 1, length + 0.5)
    assert len(tree.runs(keys)) <= MOST + 2


def test_old_prompts_go_and_the_last_ones_stay():
    tree = PromptTree(2, 10)
    stem = chained([1] * 8)
    tree.note(stem)
    tree.note(chained([2, 3, 4]))
    assert known(tree, stem)[0] == (1, 0.0), "of the generation before"
    tree.note(stem)
    assert known(tree, stem) == [(2, 0.0)] * 8, "both generations count"
    for number in range(10, 16):
        tree.note(chained([number] * 8))
    assert tree.runs(stem) == []


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(0, 5))
def test_where_two_prompts_part_is_found(one, other, at):
    shared = next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    assert shared_length(chained(one), chained(other)) == shared
    if at <= shared:
        assert shared_length(chained(one)[at:], chained(other), at) == shared - at


def test_what_is_forgotten_is_given_away():
    gone = []
    tree = PromptTree(2, 10, gone.append)
    first = chained([1] * 8)
    for number in range(1, 8):
        tree.note(chained([number] * 8))
    assert any(first[0] in generation for generation in gone)


def nodes(level):
    return sum(1 + nodes(node.below) for node in level.values())


def chunks(level):
    return sum(len(node.keys) + chunks(node.below) for node in level.values())


@given(prompts, st.integers(1, 30), st.data())
def test_no_count_is_too_high_nor_forgets_the_last_prompts_and_memory_is_bounded(noted, most_chunks, data):
    tree, noted_keys = PromptTree(MOST, most_chunks), []
    for number, words in enumerate(noted):
        keys = chained(words)
        tree.note(keys, now=float(number))
        noted_keys.append(keys)
        if keys and data.draw(st.booleans()):
            tree.hold(keys, data.draw(st.integers(0, len(keys) - 1)), number + 3.0)
        both = (tree._now, tree._before)
        assert sum(map(chunks, both)) <= 2 * most_chunks + 9
        assert chunks(tree._now) == tree._chunks <= most_chunks
        assert all(nodes(level) <= chunks(level) for level in both)
    everything = Counter(key for keys in noted_keys for key in keys)
    last: Counter[bytes] = Counter()
    for keys in reversed(noted_keys):
        if len(last | Counter(keys)) > most_chunks:
            break
        last.update(keys)
    for words in noted:
        keys = chained(words)
        for key, (count, _) in zip(keys, known(tree, keys), strict=True):
            assert min(last[key], MOST) <= count <= min(everything[key], MOST)


@given(prompts, st.booleans())
def test_taken_apart_nothing_is_left_at_any_depth(noted, joined):
    gone = []
    tree = PromptTree(MOST, 1 << 20)
    for words in noted:
        tree.note(chained([7, *words] if joined else words))
    heads, level = tree._now, list(tree._now.values())
    while level:
        gone += level
        level = [below for node in level for below in node.below.values()]
    take_apart(heads)
    assert not heads and not any(node.below for node in gone)


def test_a_time_counts_for_the_generation_before_as_well():
    tree = PromptTree(2, 8)
    stem = chained([1] * 8)
    tree.note(stem)
    tree.note(chained([2]))
    assert not set(stem) & set(tree._now)
    tree.hold(stem, 3, 5.0)
    assert known(tree, stem) == [(1, 0.0)] * 3 + [(1, 5.0)] * 5
