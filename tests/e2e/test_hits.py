# SPDX-License-Identifier: Apache-2.0
"""Every answer is the one that vLLM gives alone, and every hit is proven by the connector's own counters."""

from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_BYTES, CHUNK_TOKENS, prompt


class TestOneEngine:
    """With the usual options, on one engine in turn."""

    def test_what_was_computed_comes_back_from_disk(self, engine, reference):
        prompts = [prompt(1, 500), prompt(2, 690)]
        expected = reference(*prompts)
        assert engine.answer(*prompts) == expected
        assert engine.transferred() == (0, 7 + 10)

        engine.forget_memory()
        before = engine.counters()
        assert engine.answer(*prompts) == expected
        assert engine.transferred(before) == (7 + 10, 0)

    def test_a_prompt_that_ends_with_a_chunk(self, engine, reference):
        exact = prompt(3, 5 * CHUNK_TOKENS)
        expected = reference(exact)
        assert engine.answer(exact) == expected
        assert engine.transferred() == (0, 5)
        engine.forget_memory()
        assert engine.answer(exact) == expected
        assert engine.transferred() == (4, 5), "something has to be computed"

    def test_prompts_that_part_inside_a_chunk(self, engine, reference):
        shared = prompt(4, 4 * CHUNK_TOKENS + CHUNK_TOKENS // 2)
        first, second = prompt(5, 400, shared=shared), prompt(6, 420, shared=shared)
        expected = reference(first, second)
        assert engine.answer(first) == expected[:1]
        engine.forget_memory()
        before = engine.counters()
        assert engine.answer(second) == expected[1:]
        assert engine.transferred(before) == (4, 2)
        engine.forget_memory()
        before = engine.counters()
        assert engine.answer(first, second) == expected
        assert engine.transferred(before) == (6 + 6, 0)

    def test_a_local_hit_that_ends_inside_a_chunk_is_left_alone(self, engine, reference):
        # vLLM keeps blocks, Tutti chunks of two: the short prompt leaves two chunks and one block in memory.
        whole = prompt(7, 600)
        head = whole[: 2 * CHUNK_TOKENS + CHUNK_TOKENS // BLOCKS_PER_CHUNK + 1]
        expected = reference(whole, head)
        assert engine.answer(whole) == expected[:1]
        engine.forget_memory()
        assert engine.answer(head) == expected[1:]
        before = engine.counters()
        assert engine.answer(whole, head) == expected
        # Chunks 2 to 8: of the first of them only the second block is still missing.
        assert engine.transferred(before) == (7, 0)

    def test_answers_are_stored_too_and_a_second_turn_finds_them(self, engine, reference):
        first = prompt(10, 250)
        (answer,) = reference(first, max_tokens=80)
        second = [*first, *answer, *prompt(11, 40)]
        expected = reference(second)
        assert engine.answer(first, max_tokens=80) == [answer]
        stored = (250 + 80 - 1) // CHUNK_TOKENS
        assert engine.transferred() == (0, stored)
        engine.forget_memory()
        assert engine.answer(second) == expected
        assert engine.transferred()[0] == stored

    def test_reset_forgets_the_disk_as_well(self, engine, reference):
        one = prompt(13, 300)
        expected = reference(one)
        engine.answer(one)
        engine.forget_memory(disk=True)
        before = engine.counters()
        assert engine.answer(one) == expected
        assert engine.transferred(before) == (0, 4)

    def test_a_salt_of_its_own_shares_nothing(self, engine, reference):
        from vllm import SamplingParams

        one = prompt(14, 300)
        expected = reference(one)
        engine.answer(one)
        engine.forget_memory()
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        (output,) = engine.llm.generate(
            {"prompt_token_ids": one, "cache_salt": "tenant"}, sampling, use_tqdm=False
        )
        engine.settle()
        assert [list(output.outputs[0].token_ids)] == expected
        assert engine.transferred() == (0, 4 + 4)


def test_chunked_prefill(start, reference):
    prompts = [prompt(8, 900), prompt(9, 333)]
    expected = reference(*prompts)
    engine = start(max_num_batched_tokens=128, enable_chunked_prefill=True)
    assert engine.answer(*prompts) == expected
    assert engine.transferred() == (0, 14 + 5)
    engine.forget_memory()
    assert engine.answer(*prompts) == expected
    assert engine.transferred() == (14 + 5, 14 + 5)


def test_more_requests_than_memory_preempt_and_come_back(start, reference):
    # Six requests of ten blocks fit; each wants an eleventh after two tokens.
    prompts = [prompt(20 + n, 318) for n in range(8)]
    expected = reference(*prompts)
    engine = start(num_gpu_blocks_override=66)
    assert engine.answer(*prompts) == expected
    engine.forget_memory()
    assert engine.answer(*prompts) == expected
    assert engine.transferred()[0] >= 8 * 4


def test_without_vllms_own_prefix_cache(start, reference):
    one = prompt(12, 400)
    expected = reference(one)
    engine = start(enable_prefix_caching=False)
    assert engine.answer(one) == expected
    assert engine.answer(one) == expected
    assert engine.transferred() == (6, 6)


def test_a_small_store_evicts_and_stays_right(start, reference, tmp_path):
    prompts = [prompt(30 + n, 400) for n in range(5)]
    expected = reference(*prompts)
    capacity = 16 * CHUNK_BYTES
    engine = start(capacity_bytes=capacity)
    for _ in range(2):
        for one, tokens in zip(prompts, expected, strict=True):
            assert engine.answer(one) == [tokens]
            engine.forget_memory()
            files = [path for path in tmp_path.glob("cache/**/*") if path.is_file()]
            assert sum(path.stat().st_blocks * 512 for path in files) <= capacity
    assert engine.counters()["evicted_chunks"] > 0
