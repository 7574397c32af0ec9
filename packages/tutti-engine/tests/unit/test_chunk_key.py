# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.chunk_key import KEY_BYTES, keys_from_block_hashes, keys_from_tokens

tokens = st.lists(st.integers(0, 1 << 20), max_size=64)


@given(tokens, st.integers(1, 8))
def test_one_key_for_every_whole_chunk(prompt, chunk_tokens):
    keys = keys_from_tokens(prompt, chunk_tokens)
    assert len(keys) == len(prompt) // chunk_tokens
    assert all(len(key) == KEY_BYTES for key in keys)


@given(tokens, tokens, st.integers(1, 4))
def test_keys_agree_exactly_as_far_as_the_prompts_do(first, second, chunk_tokens):
    one, two = keys_from_tokens(first, chunk_tokens), keys_from_tokens(second, chunk_tokens)
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        end = (index + 1) * chunk_tokens
        assert (left == right) == (first[:end] == second[:end])


def test_neighbouring_fields_do_not_run_into_each_other():
    assert keys_from_tokens([1, 2], 2) != keys_from_tokens([12, 0], 2)
    assert keys_from_tokens([1], 1, parent=b"a", extra=b"") != keys_from_tokens(
        [1], 1, parent=b"", extra=b"a"
    )


def test_the_chain_can_be_continued():
    whole = keys_from_tokens(range(12), 4)
    assert keys_from_tokens(range(8, 12), 4, parent=whole[1]) == whole[2:]


def test_a_chunk_is_known_by_its_last_block_hash():
    hashes = [bytes([n]) for n in range(7)]
    assert keys_from_block_hashes(hashes, 2) == [b"\x01", b"\x03", b"\x05"]
    assert keys_from_block_hashes(hashes, 2, start=1, stop=2) == [b"\x03"]
    assert keys_from_block_hashes(hashes, 2, start=1, stop=99) == [b"\x03", b"\x05"]
