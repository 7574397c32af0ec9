# SPDX-License-Identifier: Apache-2.0
"""Loads beside the steps and loads that a step waits for give the same tokens."""

from tests.e2e.conftest import CHUNK_TOKENS, prompt


def test_layer_by_layer(start, reference):
    prompts = [prompt(80, 500), prompt(81, 5 * CHUNK_TOKENS), prompt(82, 690)]
    expected = reference(*prompts)
    engine = start(settings={"load_mode": "layerwise"})
    assert engine.answer(*prompts) == expected
    for _ in range(2):
        engine.forget_memory()
        before = engine.counters()
        # All at once: several loads in one step.
        assert engine.answer(*prompts) == expected
        assert engine.transferred(before) == (7 + 4 + 10, 0)
        moved = engine.moved(before)
        assert (moved["layerwise_loads"], moved.get("async_loads", 0)) == (3, 0)


def test_layer_by_layer_with_chunked_prefill_and_few_blocks(start, reference):
    prompts = [prompt(83 + n, 700) for n in range(4)]
    expected = reference(*prompts)
    engine = start(
        settings={"load_mode": "layerwise"},
        max_num_batched_tokens=128,
        enable_chunked_prefill=True,
        num_gpu_blocks_override=70,
    )
    assert engine.answer(*prompts) == expected
    engine.forget_memory()
    assert engine.answer(*prompts) == expected
    assert engine.counters()["layerwise_loads"] >= 4
    assert engine.counters().get("load_failed_chunks", 0) == 0
