# SPDX-License-Identifier: Apache-2.0
"""Loads beside the steps and loads that a step waits for, in a real engine: the same tokens, always."""

from tests.e2e.conftest import CHUNK_BYTES, CHUNK_TOKENS, prompt

from tools.engine_process import store_directory


def test_layer_by_layer(start, reference, tmp_path):
    prompts = [prompt(80, 500), prompt(81, 5 * CHUNK_TOKENS), prompt(82, 690)]
    expected = reference(*prompts)
    engine = start(settings={"load_mode": "layerwise"})
    assert engine.answer(*prompts) == expected
    engine.forget_memory()
    before = engine.counters()
    # All at once: several loads in one step.
    assert engine.answer(*prompts) == expected
    assert engine.transferred(before) == (7 + 4 + 10, 0)
    moved = engine.moved(before)
    assert (moved["layerwise_loads"], moved.get("async_loads", 0)) == (3, 0)

    # A bit flips in one layer of one chunk, and the step that has waited for it runs again.
    (path,) = store_directory(tmp_path / "cache").glob("rank-0/*.seg")
    with path.open("r+b") as file:
        file.seek(2 * CHUNK_BYTES + CHUNK_BYTES // 2 + 12345)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x10]))
    engine.forget_memory()
    before = engine.counters()
    assert engine.answer(*prompts) == expected
    assert engine.moved(before)["corrupt_chunks"] == 1
    engine.forget_memory()
    before = engine.counters()
    assert engine.answer(*prompts) == expected
    assert engine.transferred(before) == (7 + 4 + 10, 0)


def test_layer_by_layer_with_chunked_prefill_and_few_blocks(start, reference):
    prompts = [prompt(83 + n, 700) for n in range(3)]
    expected = reference(*prompts)
    engine = start(
        settings={"load_mode": "layerwise"},
        max_num_batched_tokens=128,
        enable_chunked_prefill=True,
        num_gpu_blocks_override=68,
    )
    assert engine.answer(*prompts) == expected
    engine.forget_memory()
    assert engine.answer(*prompts) == expected
    assert engine.counters()["layerwise_loads"] >= 3
    assert engine.counters().get("load_failed_chunks", 0) == 0


def test_auto_learns_and_leaves_alone_what_does_not_pay(start, reference):
    prompts = [prompt(90 + n, 300) for n in range(4)]
    expected = reference(*prompts)
    engine = start(settings={"load_mode": "auto", "break_even": True})
    for _ in range(3):
        for one, tokens in zip(prompts, expected, strict=True):
            assert engine.answer(one) == [tokens]
        engine.forget_memory()
    counters = engine.counters()
    ordered = counters.get("layerwise_loads", 0) + counters.get("async_loads", 0)
    answers = counters.get("break_even_loads", 0) + counters.get("break_even_probes", 0)
    assert ordered == answers > 0
    assert answers + counters.get("break_even_refused", 0) == 8

    # As if this drive were slower than computing; one hit in so many is still loaded, to measure anew.
    known = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector._scheduler.engine.break_even
    for _ in range(20):
        known.note_load(256, 60.0)
        known.note_compute(256, 0.01)  # few prompts were computed: too few to be believed, maybe
    before = engine.counters()
    for one, tokens in zip(prompts, expected, strict=True):
        assert engine.answer(one) == [tokens]
    assert engine.moved(before).get("break_even_refused", 0) == 4
    assert engine.transferred(before)[0] == 0
