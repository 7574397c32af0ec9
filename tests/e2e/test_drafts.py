# SPDX-License-Identifier: Apache-2.0
"""A draft model beside the model: its layers' KV is stored and comes back like all others'."""

from dataclasses import replace

import pytest
from tests.e2e.conftest import CHUNK_TOKENS, MODEL, prompt

from tutti_vllm.testing.tiny_model import make_tiny_model

ANSWER = 70


@pytest.mark.parametrize("draft", [replace(MODEL, layers=2, seed=5), MODEL], ids=["rejected", "accepted"])
def test_drafts_change_nothing_and_the_draft_models_pages_come_back(start, reference, tmp_path, draft):
    drafter = make_tiny_model(tmp_path / "drafter", draft)
    tokens = prompt(800, 4 * CHUNK_TOKENS - 9)
    (expected,) = reference(tokens, max_tokens=ANSWER)
    engine = start(
        num_gpu_blocks_override=66,
        speculative_config={"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 3},
    )
    (group,) = engine.kv_cache_config.kv_cache_groups
    names = [name for name in group.layer_names if name.startswith("draft_model.")]
    assert len(names) == draft.layers and len(group.layer_names) == MODEL.layers + draft.layers

    tables = engine.watch_blocks()
    assert engine.answer(tokens, max_tokens=ANSWER) == [expected]
    (table,) = tables.values()
    # Drafted tokens complete a chunk in the middle of the answer.
    chunks = (len(tokens) + ANSWER - 1) // CHUNK_TOKENS
    assert engine.counters()["store_chunks"] == chunks == 4
    cold = engine.pages(group.layer_names, table[: 2 * chunks])
    assert all(map(any, cold.values()))

    engine.forget_memory()
    engine.answer(prompt(801, 1900))  # the blocks belong to others meanwhile
    tables.clear()
    before = engine.counters()
    turn = [*tokens, *expected, *prompt(802, 20)]
    (answer,) = engine.answer(turn, max_tokens=8)
    assert engine.moved(before)["load_chunks"] == chunks
    (table,) = tables.values()
    warm = engine.pages(group.layer_names, table[: 2 * chunks])
    assert [name for name in cold if cold[name] != warm[name]] == []
    assert [answer] == reference(turn, max_tokens=8)
    assert engine.in_use() == {}
