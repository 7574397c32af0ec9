# SPDX-License-Identifier: Apache-2.0
"""LoRA on a real engine: adapters hit their own chunks, never another one's, also under an old name."""

import json
import threading
from pathlib import Path

import pytest
from tests.e2e.conftest import CHUNK_TOKENS, MODEL, prompt

from tutti_vllm.scheduler_side import adapters

RANK = 4


def make_adapter(folder: Path, seed: int) -> Path:
    """Write a random adapter of the attention's projections, strong enough to change every answer."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    chance = torch.Generator().manual_seed(seed)
    kv = MODEL.kv_heads * MODEL.head_size
    sizes = {"q_proj": MODEL.hidden, "k_proj": kv, "v_proj": kv}
    weights = {}
    for layer in range(MODEL.layers):
        for name, size in sizes.items():
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{where}.lora_A.weight"] = torch.randn(RANK, MODEL.hidden, generator=chance) * 0.3
            weights[f"{where}.lora_B.weight"] = torch.randn(size, RANK, generator=chance) * 0.3
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": [*sizes],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def served(start, monkeypatch):
    """Start engines with LoRA; ask them with an adapter. One is read when the test says so."""
    readable, read = threading.Event(), adapters._read

    def read_later(adapter):
        assert readable.wait(60)
        read(adapter)

    monkeypatch.setattr(adapters, "_read", read_later)

    def make():
        engine = start(enable_lora=True, max_loras=2, max_lora_rank=8)

        def ask(tokens, adapter=None, number=1):
            """Return the answer, chunks loaded and stored; nothing comes from vLLM's own cache."""
            from vllm import SamplingParams
            from vllm.lora.request import LoRARequest

            engine.forget_memory()
            before = engine.counters()
            sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
            lora = None if adapter is None else LoRARequest(adapter.name, number, str(adapter))
            (output,) = engine.llm.generate(
                {"prompt_token_ids": tokens}, sampling, use_tqdm=False, lora_request=lora
            )
            engine.settle()
            return list(output.outputs[0].token_ids), *engine.transferred(before)

        def learn():
            """Let the adapters be read that were seen."""
            readable.set()
            assert engine._core.scheduler.connector._scheduler.adapters.wait(60)
            readable.clear()

        ask.learn = learn
        return ask

    return make


def test_adapters_hit_and_never_mix_also_when_one_changes_under_its_name(served, tmp_path):
    one, two = (make_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two")))
    tokens = prompt(700, 3 * CHUNK_TOKENS + 5)
    ask = served()

    # Its content is not known yet: nothing is stored.
    plain, loaded, stored = ask(tokens)
    assert (loaded, stored) == (0, 3)
    first, loaded, stored = ask(tokens, one, 1)
    assert (loaded, stored) == (0, 0) and first != plain
    ask.learn()
    assert ask(tokens, one, 1) == (first, 0, 3)
    assert ask(tokens, one, 1) == (first, 3, 0)

    second, loaded, stored = ask(tokens, two, 2)
    assert (loaded, stored) == (0, 0) and second not in (first, plain)
    ask.learn()
    assert ask(tokens, two, 2) == (second, 0, 3)
    assert ask(tokens, two, 2) == (second, 3, 0)
    assert ask(tokens) == (plain, 3, 0)

    # The file changes under a server that has read it: it is left out, whatever vLLM computes with.
    make_adapter(one, 99)
    assert ask(tokens, one, 1) == (first, 0, 0)

    # A restart: what is there now is another adapter, the other one is as it was.
    ask = served()
    for adapter, number in ((one, 1), (two, 2)):
        ask(tokens, adapter, number)
    ask.learn()
    changed, loaded, stored = ask(tokens, one, 1)
    assert (loaded, stored) == (0, 3) and changed not in (first, second, plain)
    assert ask(tokens, one, 1) == (changed, 3, 0)
    assert ask(tokens, two, 2) == (second, 3, 0)
