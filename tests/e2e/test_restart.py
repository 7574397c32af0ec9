# SPDX-License-Identifier: Apache-2.0
"""A new process takes over what an earlier one computed.

Engines run as vLLM runs them: several processes each.
"""

from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_BYTES, CHUNK_TOKENS, OPTIONS, prompt

from tools.engine_run import RunSpec, run_in_new_process, store_directory

PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def spec(model, root, prompts, **options):
    connector = {
        "capacity_bytes": 64 << 20,
        "root": str(root),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
    }
    return RunSpec(str(model), prompts, connector=connector, options=OPTIONS | options)


def test_warm_after_a_restart(model, reference, tmp_path):
    prompts = [prompt(40, 300), prompt(41, 10 * CHUNK_TOKENS), prompt(42, 777)]
    cold = run_in_new_process(spec(model, tmp_path / "cache", prompts), environment=PROCESSES)
    assert [a.tokens for a in cold] == reference(*prompts)
    assert [a.hit_tokens for a in cold] == [0, 0, 0]
    assert [a.counters["written_bytes"] for a in cold] == [c * CHUNK_BYTES for c in (4, 10, 12)]

    warm = run_in_new_process(spec(model, tmp_path / "cache", prompts), environment=PROCESSES)
    assert [a.tokens for a in warm] == reference(*prompts)
    assert [a.hit_tokens for a in warm] == [4 * CHUNK_TOKENS, 9 * CHUNK_TOKENS, 12 * CHUNK_TOKENS]
    assert [a.counters["read_bytes"] for a in warm] == [c * CHUNK_BYTES for c in (4, 9, 12)]
    assert [a.counters["written_bytes"] for a in warm] == [0, 0, 0]
    private = [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_mode & 0o077]
    assert private == []


def test_a_killed_server_leaves_nothing_wrong(model, reference, tmp_path):
    prompts = [prompt(45 + n, 500) for n in range(3)]
    expected = reference(*prompts)
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    before = run_in_new_process(
        spec(model, tmp_path / "cache", prompts), environment=one_process, kill_after=2
    )
    assert [a.tokens for a in before] == expected[:2]
    after = run_in_new_process(spec(model, tmp_path / "cache", prompts), environment=one_process)
    assert [a.tokens for a in after] == expected
    assert [a.counters["load_chunks"] for a in after[:2]] == [7, 7]
    assert sum(a.counters.get("load_failed_chunks", 0) for a in after) == 0


def test_two_ranks_store_and_load_their_own_halves(model, reference, tmp_path):
    # Without a prefix cache of vLLM's own, the second time each prompt comes it is loaded.
    prompts = [prompt(43, 300), prompt(44, 500)]
    answers = run_in_new_process(
        spec(
            model,
            tmp_path / "cache",
            prompts + prompts,
            tensor_parallel_size=2,
            enable_prefix_caching=False,
            distributed_executor_backend="mp",
        ),
        environment=PROCESSES | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )
    assert [a.tokens for a in answers] == reference(*prompts, *prompts)
    assert [a.counters["read_bytes"] for a in answers[2:]] == [4 * CHUNK_BYTES, 7 * CHUNK_BYTES]
    store = store_directory(tmp_path / "cache")
    assert sorted(path.name for path in store.glob("rank-*")) == ["rank-0", "rank-1"]
