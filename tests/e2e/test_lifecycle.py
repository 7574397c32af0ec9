# SPDX-License-Identifier: Apache-2.0
"""What users do to a running engine; orderings that one rarely shows are in the connector's own tests."""

import gc

import pytest
from tests.e2e.conftest import CHUNK_TOKENS, prompt


@pytest.fixture(params=["async", "layerwise"])
def engine(request, start):
    return start(settings={"load_mode": request.param})


def test_a_day_in_the_life_of_an_engine(engine, reference):
    from vllm import SamplingParams

    exact, whole = prompt(110, 5 * CHUNK_TOKENS), prompt(111, 600)
    head = whole[: 2 * CHUNK_TOKENS + CHUNK_TOKENS // 2 + 1]
    expected = reference(exact, whole, head)
    assert engine.answer(exact, whole) == expected[:2]

    # A local hit that ends inside a chunk, and the rest of that chunk from disk.
    engine.forget_memory()
    assert engine.answer(head) == expected[2:]
    before = engine.counters()
    assert engine.answer(whole, exact) == [expected[1], expected[0]]
    assert engine.transferred(before) == (7 + 4, 0)

    # Every prompt token is wanted: nothing is loaded.
    engine.forget_memory()
    before = engine.counters()
    sampling = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, detokenize=False, prompt_logprobs=0
    )
    (output,) = engine.llm.generate({"prompt_token_ids": whole}, sampling, use_tqdm=False)
    engine.settle()
    assert list(output.outputs[0].token_ids) == expected[1]
    assert engine.transferred(before) == (0, 0)

    # Aborted after one, two, three steps of a load or of a computation.
    for steps in range(1, 4):
        engine.forget_memory()
        plain = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        name = f"aborted {steps}"
        engine.llm.llm_engine.add_request(name, {"prompt_token_ids": whole}, plain)
        for _ in range(steps):
            engine.llm.llm_engine.step()
        engine.llm.llm_engine.abort_request([name])
        engine.settle()
        assert engine.in_use() == {}
    assert engine.answer(whole) == expected[1:2]

    # Asleep and awake: vLLM resets the connector's cache with its own, as weights may change meanwhile.
    engine.llm.sleep(level=1)
    engine.llm.wake_up()
    before = engine.counters()
    assert engine.answer(whole) == expected[1:2]
    assert engine.transferred(before) == (0, 9)
    assert engine.in_use() == {}


def test_an_engine_that_ended_takes_nothing_of_the_next_one_along(start, reference):
    client = start().llm.llm_engine.engine_core
    engine = start()
    del client
    gc.unfreeze()
    gc.collect()
    one = prompt(112, 100)
    assert engine.answer(one) == reference(one)
