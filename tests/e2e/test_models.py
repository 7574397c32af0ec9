# SPDX-License-Identifier: Apache-2.0
"""Models whose KV is not one list of equal blocks: windows, latents, eight bits, states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_TOKENS, OPTIONS, Engine, prompt

from tools.engine_process import EngineProcess, EngineSpec, store_directory
from tutti_vllm.testing.tiny_families import make_tiny

PAGE = 32 * 2 * 2 * 64 * 4
"""Bytes of a block of 32 tokens in one layer: keys and values of two heads of 64, float32."""

SEGMENT = BLOCKS_PER_CHUNK * PAGE


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(tmp_path_factory.mktemp(family), family)
        return made[family]

    return make


@pytest.fixture
def serve(
    folder_of: Callable[[str], Path], tmp_path: Path, vllm_loaded: None
) -> Iterator[Callable[..., Engine]]:
    """Start engines of a family, one at a time, on a store of the test's own."""
    running: list[Engine] = []

    def make(family: str, *, alone: bool = False, strict: bool = True, **options: Any) -> Engine:
        for engine in running:
            engine.close()
        running.clear()
        connector = {
            "capacity_bytes": 64 << 20,
            "root": str(tmp_path / "cache"),
            "blocks_per_chunk": BLOCKS_PER_CHUNK,
            "strict": strict,
            "break_even": False,
        }
        options = {"num_gpu_blocks_override": 320} | options
        running.append(Engine(folder_of(family), None if alone else connector, options))
        return running[-1]

    yield make
    for engine in running:
        engine.close()


def groups_of(engine: Engine) -> list[str]:
    return [type(group.kv_cache_spec).__name__ for group in engine.kv_cache_config.kv_cache_groups]


def flip_everything(root: Path) -> None:
    """Change every byte of a store."""
    store = store_directory(root)
    assert store is not None
    for path in store.glob("rank-*/*.seg"):
        path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))


PROMPTS = [prompt(60, 500), prompt(61, 690), prompt(62, 40)]


def test_windows_beside_full_attention(serve, tmp_path):
    shorter = PROMPTS[1][: 5 * CHUNK_TOKENS + 7]
    alone = serve("gemma3", alone=True, enable_prefix_caching=False)
    expected, short = alone.answer(*PROMPTS), alone.answer(shorter)
    cold = serve("gemma3")
    assert sorted(groups_of(cold)) == ["FullAttentionSpec", "SlidingWindowSpec", "SlidingWindowSpec"]
    assert cold.answer(*PROMPTS) == expected
    assert cold.counters()["store_chunks"] == 7 + 10
    assert cold.counters()["written_bytes"] == 17 * 6 * SEGMENT

    warm = serve("gemma3")
    assert warm.answer(*PROMPTS) == expected
    assert warm.counters()["load_chunks"] == 7 + 10
    # All chunks of the two layers that see everything; of four others the two that the window of 100 reaches.
    assert warm.counters()["read_bytes"] == (17 * 2 + 2 * 2 * 4) * SEGMENT

    # A prefix of what was stored ends where a window begins in the middle of the prompt.
    warm.forget_memory()
    before = warm.counters()
    assert warm.answer(shorter) == short
    assert warm.moved(before)["read_bytes"] == (5 * 2 + 2 * 4) * SEGMENT


def test_a_damaged_store_of_several_groups_is_computed_again(serve, tmp_path):
    cold = serve("gemma3")
    expected = cold.answer(*PROMPTS)
    flip_everything(tmp_path / "cache")
    cold.forget_memory()
    before = cold.counters()
    assert cold.answer(*PROMPTS) == expected
    moved = cold.moved(before)
    assert moved["load_failed_chunks"] == 7 + 10 and moved.get("load_chunks", 0) == 0
    assert moved["store_chunks"] == 7 + 10
    cold.forget_memory()
    before = cold.counters()
    assert cold.answer(*PROMPTS) == expected
    assert cold.moved(before)["load_chunks"] == 7 + 10


def test_local_hits_of_several_groups_are_left_alone(serve):
    # A short prompt leaves two chunks and a block in memory; the long one's rest comes from disk.
    engine = serve("gemma3")
    expected = engine.answer(PROMPTS[1])
    engine.forget_memory()
    engine.answer(PROMPTS[1][: 2 * CHUNK_TOKENS + 33])
    before = engine.counters()
    assert engine.answer(PROMPTS[1]) == expected
    assert engine.moved(before)["load_chunks"] == 8
    # Of the first of them only its second block was missing, but it is read whole to be verified.
    assert engine.moved(before)["read_bytes"] == (8 * 2 + 2 * 4) * SEGMENT


def test_a_window_in_every_layer(serve):
    cold = serve("mistral")
    assert groups_of(cold) == ["SlidingWindowSpec"]
    expected = cold.answer(*PROMPTS)
    warm = serve("mistral")
    assert warm.answer(*PROMPTS) == expected
    assert warm.counters()["load_chunks"] == 7 + 10
    assert warm.counters()["read_bytes"] == 2 * 2 * 4 * SEGMENT


def test_eight_bit_kv(serve):
    cold = serve("gemma3", kv_cache_dtype="fp8")
    expected = cold.answer(*PROMPTS)
    assert cold.counters()["written_bytes"] == 17 * 6 * SEGMENT // 4
    warm = serve("gemma3", kv_cache_dtype="fp8")
    assert warm.answer(*PROMPTS) == expected
    assert warm.counters()["read_bytes"] == (17 * 2 + 2 * 2 * 4) * SEGMENT // 4


def test_a_latent_comes_back_byte_by_byte(serve):
    tokens = PROMPTS[0]
    cold = serve("deepseek")
    (group,) = cold.kv_cache_config.kv_cache_groups
    assert type(group.kv_cache_spec).__name__ == "MLAAttentionSpec"
    chunk_blocks = (len(tokens) - 1) // (BLOCKS_PER_CHUNK * group.kv_cache_spec.block_size) * BLOCKS_PER_CHUNK
    tables = cold.watch_blocks()
    cold.answer(tokens)
    (table,) = tables.values()
    stored = cold.pages(group.layer_names, table[:chunk_blocks])

    warm = serve("deepseek")
    # Other blocks than before.
    warm.answer(prompt(63, 200))
    tables = warm.watch_blocks()
    before = warm.counters()
    warm.answer(tokens)
    assert warm.moved(before)["load_chunks"] == chunk_blocks // BLOCKS_PER_CHUNK
    (table,) = tables.values()
    loaded = warm.pages(group.layer_names, table[:chunk_blocks])
    assert stored.keys() == loaded.keys()
    assert all(stored[name] == loaded[name] for name in stored)


def test_a_state_is_refused_by_the_name_of_its_group(serve):
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    with pytest.raises(SystemExit, match=r"Tutti: KV cache group 0 \('model.layers.0.short_conv'.*MambaSpec"):
        serve("lfm2")
    # What vLLM's failed start leaves behind in this process.
    ensure_kv_transfer_shutdown()

    lenient = serve("lfm2", strict=False)
    assert lenient.counters() == {}
    assert [len(answer) for answer in lenient.answer(PROMPTS[0])] == [8]
    lenient.forget_memory()
    assert [len(answer) for answer in lenient.answer(PROMPTS[0])] == [8]


def test_drafts_that_are_rejected_are_never_stored(serve, folder_of, tmp_path):
    # A prompt that repeats itself makes n-gram drafts, most of which this model does not go on with.
    repeated = (PROMPTS[0][:40] * 12)[:470]
    alone = serve("qwen3", alone=True, enable_prefix_caching=False)
    (expected,) = alone.answer(repeated, max_tokens=100)
    turn = [*repeated, *expected, *prompt(64, 30)]
    (follow,) = alone.answer(turn)
    connector = {
        "capacity_bytes": 64 << 20,
        "root": str(tmp_path / "cache"),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
        "break_even": False,
    }
    options = OPTIONS | {
        "enable_prefix_caching": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    }
    # In a process of its own: vLLM starts no further engine in one that has drafted so.
    with EngineProcess(EngineSpec(str(folder_of("qwen3")), connector, options), one_process=True) as engine:
        first = engine.answer(repeated, max_tokens=100)
        second = engine.answer(turn)
    assert (first.tokens, second.tokens) == (expected, follow)
    assert second.hit_tokens == (470 + 100 - 1) // CHUNK_TOKENS * CHUNK_TOKENS
