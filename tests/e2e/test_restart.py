# SPDX-License-Identifier: Apache-2.0
"""A new process takes over what an earlier one computed.

Without ``one_process`` engines run as vLLM runs them, scheduler and workers in processes of their own.
"""

from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_BYTES, CHUNK_TOKENS, OPTIONS, prompt

from tools.engine_process import EngineProcess, EngineSpec, store_directory


def spec(model, root, **options):
    connector = {
        "capacity_bytes": 64 << 20,
        "root": str(root),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
        "break_even": False,
    }
    return EngineSpec(str(model), connector, OPTIONS | options)


def test_warm_after_a_restart(model, reference, tmp_path):
    prompts = [prompt(40, 300), prompt(41, 10 * CHUNK_TOKENS), prompt(42, 777)]
    expected = reference(*prompts)
    with EngineProcess(spec(model, tmp_path / "cache"), one_process=True) as engine:
        cold = [engine.answer(one) for one in prompts]
    assert [a.tokens for a in cold] == expected
    assert [a.hit_tokens for a in cold] == [0, 0, 0]
    assert [a.counters["written_bytes"] for a in cold] == [c * CHUNK_BYTES for c in (4, 10, 12)]

    with EngineProcess(spec(model, tmp_path / "cache")) as engine:
        warm = [engine.answer(one) for one in prompts]
    assert [a.tokens for a in warm] == expected
    assert [a.hit_tokens for a in warm] == [4 * CHUNK_TOKENS, 9 * CHUNK_TOKENS, 12 * CHUNK_TOKENS]
    assert [a.counters["read_bytes"] for a in warm] == [c * CHUNK_BYTES for c in (4, 9, 12)]
    assert [a.counters["written_bytes"] for a in warm] == [0, 0, 0]
    private = [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_mode & 0o077]
    assert private == []


def test_a_killed_server_leaves_nothing_wrong(model, reference, tmp_path):
    prompts = [prompt(45 + n, 500) for n in range(3)]
    expected = reference(*prompts)
    killed = EngineProcess(spec(model, tmp_path / "cache"), one_process=True)
    assert [killed.answer(one).tokens for one in prompts[:2]] == expected[:2]
    killed.kill()
    with EngineProcess(spec(model, tmp_path / "cache"), one_process=True) as engine:
        after = [engine.answer(one) for one in prompts]
    assert [a.tokens for a in after] == expected
    assert [a.counters["load_chunks"] for a in after[:2]] == [7, 7]
    assert sum(a.counters.get("load_failed_chunks", 0) for a in after) == 0


def test_two_ranks_store_and_load_their_own_halves(model, reference, tmp_path):
    # Without a prefix cache of vLLM's own, the second time each prompt comes it is loaded.
    prompts = [prompt(43, 300), prompt(44, 500)]
    expected = reference(*prompts)
    options = {
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
        "distributed_executor_backend": "mp",
    }
    with EngineProcess(
        spec(model, tmp_path / "cache", **options), VLLM_CPU_OMP_THREADS_BIND="nobind"
    ) as engine:
        first = [engine.answer(one) for one in prompts]
        second = [engine.answer(one) for one in prompts]
    assert [a.tokens for a in first] == [a.tokens for a in second] == expected
    assert [a.counters["read_bytes"] for a in second] == [4 * CHUNK_BYTES, 7 * CHUNK_BYTES]
    store = store_directory(tmp_path / "cache")
    assert sorted(path.name for path in store.glob("rank-*")) == ["rank-0", "rank-1"]
