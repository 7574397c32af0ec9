# SPDX-License-Identifier: Apache-2.0
"""Several workers, in processes of their own: who stores what, and that all of them load.

Two tensor ranks with a half of the heads each: ``test_restart``.
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_TOKENS, MODEL, OPTIONS, Engine, prompt

from tools.engine_process import EngineProcess, EngineSpec, store_directory
from tutti_vllm.testing.tiny_families import make_tiny
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

PROMPTS = [prompt(70, 300), prompt(71, 500)]

UNEVEN = TinyModel(
    layers=5,
    hidden=MODEL.hidden,
    heads=MODEL.heads,
    kv_heads=MODEL.kv_heads,
    intermediate=MODEL.intermediate,
    vocabulary=MODEL.vocabulary,
    max_tokens=MODEL.max_tokens,
)


def spec(model: Path, root: Path, **options) -> EngineSpec:
    connector = {
        "capacity_bytes": 64 << 20,
        "root": str(root),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
        "break_even": False,
    }
    return EngineSpec(str(model), connector, OPTIONS | options)


def alone(model: Path) -> list[list[int]]:
    engine = Engine(model, None, {"enable_prefix_caching": False})
    answers = [engine.answer(one)[0] for one in PROMPTS]
    engine.close()
    return answers


def occupied(root: Path) -> dict[str, int]:
    """Return the bytes on disk of each part of a store."""
    store = store_directory(root)
    assert store is not None
    return {
        path.name: sum(file.stat().st_blocks * 512 for file in path.iterdir())
        for path in sorted(store.glob("rank-*"))
    }


def test_two_pipeline_stages_of_unequal_length_over_a_restart(tmp_path, vllm_loaded):
    model = make_tiny_model(tmp_path / "model", UNEVEN)
    expected = alone(model)
    options = {
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "mp",
        # vLLM's CPU worker makes the tensors that stages exchange only where it warms a compiled model up.
        "enforce_eager": False,
        "compilation_config": {"mode": 2, "backend": "eager"},
    }
    how = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with EngineProcess(spec(model, tmp_path / "cache", **options), **how) as engine:
        cold = [engine.answer(one) for one in PROMPTS]
    assert [answer.tokens for answer in cold] == expected
    segment = BLOCKS_PER_CHUNK * 32 * 2 * UNEVEN.kv_heads * UNEVEN.head_size * 4
    assert [answer.counters["written_bytes"] for answer in cold] == [n * 5 * segment for n in (4, 7)]
    # The first stage has three layers and the second one two.
    first, second = occupied(tmp_path / "cache").values()
    assert abs(first - 11 * 3 * segment) < segment and abs(second - 11 * 2 * segment) < segment

    with EngineProcess(spec(model, tmp_path / "cache", **options), **how) as engine:
        warm = [engine.answer(one) for one in PROMPTS]
    assert [answer.tokens for answer in warm] == expected
    assert [answer.hit_tokens for answer in warm] == [4 * CHUNK_TOKENS, 7 * CHUNK_TOKENS]
    assert [answer.counters["read_bytes"] for answer in warm] == [n * 5 * segment for n in (4, 7)]


def test_ranks_that_hold_the_same_kv_store_it_once(tmp_path, vllm_loaded):
    # One KV head, two ranks.
    model = make_tiny(tmp_path / "model", "qwen3")
    expected = alone(model)
    options = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "enable_prefix_caching": False,
    }
    with EngineProcess(
        spec(model, tmp_path / "cache", **options), VLLM_CPU_OMP_THREADS_BIND="nobind"
    ) as engine:
        cold = [engine.answer(one) for one in PROMPTS]
        warm = [engine.answer(one) for one in PROMPTS]
    assert [answer.tokens for answer in cold] == [answer.tokens for answer in warm] == expected
    segment = BLOCKS_PER_CHUNK * 32 * 2 * 64 * 4
    assert [answer.counters["written_bytes"] for answer in cold] == [n * 4 * segment for n in (4, 7)]
    # Both ranks read all of it.
    assert [answer.counters["read_bytes"] for answer in warm] == [2 * n * 4 * segment for n in (4, 7)]
    assert [answer.hit_tokens for answer in warm] == [4 * CHUNK_TOKENS, 7 * CHUNK_TOKENS]
    assert list(occupied(tmp_path / "cache")) == ["rank-0"]
