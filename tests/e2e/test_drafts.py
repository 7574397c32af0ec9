# SPDX-License-Identifier: Apache-2.0
"""A draft model beside the model: its layers' KV is stored and comes back like all others'."""

import json
from dataclasses import replace

import pytest
from tests.e2e.conftest import CHUNK_TOKENS, MODEL, prompt

from tutti_vllm.testing.tiny_model import make_tiny_model

ANSWER = 70
LAYERS = {"rejected": 2, "accepted": MODEL.layers, "eagle": 1}


def make_eagle(folder):
    """Write an EAGLE head of random weights: a layer that sees the model's hidden states as well."""
    import torch
    from safetensors.torch import load_file, save_file

    make_tiny_model(folder, replace(MODEL, layers=1, seed=5))
    path, config = folder / "model.safetensors", folder / "config.json"
    facts = json.loads(config.read_text()) | {"architectures": ["EagleLlamaForCausalLM"]}
    config.write_text(json.dumps(facts))
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(path).items()
        if "layers" in name and "input_layernorm" not in name
    }
    joint = torch.randn(MODEL.hidden, 2 * MODEL.hidden, generator=torch.Generator().manual_seed(1))
    save_file(weights | {"fc.weight": joint / (2 * MODEL.hidden) ** 0.5}, path, metadata={"format": "pt"})
    return folder


def make_drafter(folder, kind):
    if kind == "eagle":
        return make_eagle(folder)
    return make_tiny_model(folder, MODEL if kind == "accepted" else replace(MODEL, layers=2, seed=5))


@pytest.mark.parametrize("kind", LAYERS)
def test_drafts_change_nothing_and_the_draft_models_pages_come_back(start, reference, tmp_path, kind):
    drafter = make_drafter(tmp_path / "drafter", kind)
    tokens = prompt(800, 4 * CHUNK_TOKENS - 9)
    (expected,) = reference(tokens, max_tokens=ANSWER)
    engine = start(
        num_gpu_blocks_override=66,
        speculative_config={
            "method": "eagle" if kind == "eagle" else "draft_model",
            "model": str(drafter),
            "num_speculative_tokens": 3,
        },
    )
    (group,) = engine.kv_cache_config.kv_cache_groups
    assert len(group.layer_names) == MODEL.layers + LAYERS[kind]

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
