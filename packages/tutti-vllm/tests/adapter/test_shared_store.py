# SPDX-License-Identifier: Apache-2.0
"""Servers that share a store, above vLLM's real schedulers: whatever the store does, the tokens are right."""

import errno
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

CHUNKS = 6
"""Whole chunks of the prompts here that may be loaded."""


def prompt_of(words, seed=1):
    return words(seed, 32 * CHUNKS + 5)


def warm(server, sharing, pool, tokens, **how):
    """Have a first server write a prompt's chunks."""
    one = server(shared=sharing(pool, **how))
    one.answer("warm", tokens)
    return one


def test_what_one_server_computed_another_loads_and_keeps(server, sharing, pool, words):
    tokens = prompt_of(words)
    one = warm(server, sharing, pool, tokens)
    assert one.count("shared_store_chunks") == CHUNKS
    other = server(shared=sharing(pool))
    other.answer("a", tokens)
    assert other.count("shared_load_chunks") == CHUNKS
    assert other.count("shared_hit_tokens") == 32 * CHUNKS
    assert other.count("store_chunks") == CHUNKS, "what came from there is stored here"
    assert other.count("shared_store_chunks") == 0, "and not written back"
    other.forget_memory()
    other.answer("b", tokens)
    assert (other.count("load_chunks"), other.count("shared_load_chunks")) == (CHUNKS, CHUNKS)


def test_one_request_loads_from_both_and_waits_for_both(server, sharing, pool, words):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    other = server(shared=sharing(pool, write="never"))
    other.answer("head", tokens[: 32 * 2 + 1])
    other.forget_memory()
    before = other.count("shared_load_chunks")
    other.backend.closed = "read"
    other.add("a", tokens)
    other.until(lambda: other.count("shared_load_chunks") - before == CHUNKS - 2)
    assert other.read_batches_held() == 1
    for _ in range(3):
        other.step()
    assert not other.answers["a"], "a part of its pages is not there"
    other.backend.open()
    other.run()
    other.check("a")
    assert other.count("load_chunks") == 2


@pytest.mark.parametrize("fault", ["read error", "gone", "damaged", "hangs", "lookup error", "lookup hangs"])
def test_a_store_that_fails_costs_no_token_and_holds_nothing(server, sharing, pool, words, fault):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    how = {"lookup_seconds": 0.05} if fault.startswith("lookup") else {}
    shared = sharing(pool, write="never", **how)
    other = server(shared=shared)
    if fault == "lookup error":
        shared.faults.error = errno.EIO
    elif fault == "lookup hangs":
        shared.faults.running.clear()
    other.add("a", tokens)
    if not fault.startswith("lookup"):
        tier = other.connector._scheduler.shared.tier
        deadline = time.monotonic() + 30
        keys = list(other.connector._scheduler._tracked["a"].keys)[:CHUNKS]
        while tier.look(keys).chunks < CHUNKS:
            assert time.monotonic() < deadline
    if fault == "read error":
        shared.faults.error = errno.EIO
    elif fault == "gone":
        pool.objects.clear()
    elif fault == "damaged":
        pool.objects = {name: data[:4100] + b"?" + data[4101:] for name, data in pool.objects.items()}
    elif fault == "hangs":
        shared.faults.running.clear()
    other.until(lambda: "a" in other.finished)
    other.check("a")
    shared.faults.running.set()
    other.run()
    assert other.count("shared_load_chunks") == 0
    if not fault.startswith("lookup"):
        assert other.count("shared_load_failed_chunks") == CHUNKS


def test_one_chunk_that_is_gone_leaves_those_before_it(server, sharing, pool, words):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    shared = sharing(pool, write="never")
    other = server(shared=shared)
    other.add("a", tokens)
    side = other.connector._scheduler
    keys = list(side._tracked["a"].keys)
    deadline = time.monotonic() + 30
    while side.shared.tier.look(keys[:CHUNKS]).chunks < CHUNKS:
        assert time.monotonic() < deadline
    (name,) = (each for each in pool.objects if each.endswith(bytes(keys[3]).hex()))
    del pool.objects[name]
    other.run()
    other.check("a")
    assert other.count("shared_load_failed_chunks") == 1
    assert other.count("shared_load_chunks") == CHUNKS - 1


def test_a_request_that_goes_while_its_load_hangs_gives_its_blocks_back(server, sharing, pool, words):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    shared = sharing(pool, write="never")
    other = server(shared=shared)
    other.add("a", tokens)
    other.until(lambda: other.connector._scheduler.shared.tier.lookup._there)
    shared.faults.running.clear()
    other.until(lambda: other.connector.in_use().get("shared_load_plans"))
    other.step()
    other.abort("a")
    for _ in range(3):
        other.step()
    shared.faults.running.set()
    other.run()
    other.answer("b", prompt_of(words, 2))


def test_a_load_that_takes_longer_than_it_may_is_computed(server, sharing, pool, words):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    shared = sharing(pool, write="never", load_seconds=0.05)
    other = server(shared=shared)
    other.add("a", tokens)
    other.until(lambda: other.connector._scheduler.shared.tier.lookup._there)
    shared.faults.running.clear()
    other.until(lambda: "a" in other.finished)
    other.check("a")
    assert other.count("shared_load_failed_chunks") == CHUNKS
    shared.faults.running.set()
    other.run()


def test_a_full_store_and_one_that_is_cut_off_take_nothing_and_cost_nothing(server, sharing, pool, words):
    pool.capacity_bytes = 0
    shared = sharing(pool)
    one = server(shared=shared)
    one.answer("a", prompt_of(words, 1))
    assert one.count("shared_store_failed_chunks") == CHUNKS
    shared.faults.cut_until = float("inf")
    one.answer("b", prompt_of(words, 2))
    pool.capacity_bytes = 1 << 40
    shared.faults.cut_until = 0.0
    deadline = time.monotonic() + 30
    number = 3
    while not one.count("shared_store_chunks"):
        assert time.monotonic() < deadline, "it never heals"
        one.answer(f"n{number}", prompt_of(words, number))
        number += 1
    one.forget_memory()
    one.answer("again", prompt_of(words, 1))


def test_after_a_reset_nothing_goes_to_the_store_or_comes_from_it(server, sharing, pool, words):
    tokens = prompt_of(words)
    one = warm(server, sharing, pool, tokens)
    written = one.count("shared_store_chunks")
    one.forget_memory(disk=True)
    one.answer("a", tokens)
    one.answer("b", prompt_of(words, 2))
    assert one.count("shared_load_chunks") == 0
    assert one.count("shared_store_chunks") == written
    assert "weights" in one.connector.degraded()["shared"]


def test_only_chunks_that_two_prompts_had_are_written_by_default(server, sharing, pool, words):
    stem = words(5, 96)
    one = server(shared=sharing(pool, write="second_sight"))
    one.answer("a", words(6, 150, shared=stem))
    assert one.count("shared_store_chunks") == 0
    one.answer("b", words(7, 150, shared=stem))
    assert one.count("shared_store_chunks") == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_brings_its_part(server, sharing, pool, words, ranks):
    tokens = prompt_of(words)
    one = server(shared=sharing(pool, ranks=ranks), ranks=ranks)
    one.answer("a", tokens)
    assert len(pool.objects) == ranks * CHUNKS
    other = server(shared=sharing(pool, ranks=ranks, write="never"), ranks=ranks)
    if ranks == 2:
        gone = [name for name in pool.objects if "/1.0/" in name][3]
        del pool.objects[gone]
    other.answer("a", tokens)
    assert other.count("shared_load_chunks") == (CHUNKS if ranks == 1 else 3)


def test_the_steps_report_what_went_where(server, sharing, pool, words):
    tokens = prompt_of(words)
    warm(server, sharing, pool, tokens)
    other = server(shared=sharing(pool))
    other.answer("a", tokens)
    meter = other.connector._scheduler.meter
    found = meter.totals() | meter.gauges(broken=False)
    told = other.worker.stats.data
    assert found["shared_load_chunks"] == CHUNKS
    assert told["counts"]["load_bytes@shared/memory"] == found["shared_read_bytes"]
    assert found["shared_up"] == 1.0
    assert len(told["samples"]["shared_load_wait"]) == 1
