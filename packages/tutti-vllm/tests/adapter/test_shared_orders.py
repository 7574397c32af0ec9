# SPDX-License-Identifier: Apache-2.0
"""Steps whose stores could not be planned to their end leave nothing wrong in the shared store."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

CHUNKS = 6


def test_what_a_failed_step_noted_is_not_written_by_a_later_one(server, sharing, pool, words, monkeypatch):
    tokens = words(1, 32 * CHUNKS + 5)
    one = server(shared=sharing(pool), blocks=2 * CHUNKS + 4)
    side = one.connector._scheduler
    plan, noted = side._chunks._completed_chunks, []

    def fails(*what):
        noted.append(plan(*what))
        raise RuntimeError("the rest of the step's requests could not be looked at")

    with monkeypatch.context() as patch:
        patch.setattr(side._chunks, "_completed_chunks", fails)
        one.add("a", tokens)
        one.until(lambda: noted)
        one.abort("a")
    # From now on its blocks are anybody's.
    one.answer("b", words(2, 40))
    assert one.count("shared_store_chunks") == 1, "the second prompt's only chunk"


def test_a_plan_that_no_worker_hears_of_holds_nothing(server, sharing, pool, words, monkeypatch):
    one = server(shared=sharing(pool))
    side = one.connector._scheduler

    def fails(*what):
        raise RuntimeError("the local store's plan could not be made")

    with monkeypatch.context() as patch:
        patch.setattr(side._engine, "plan_store", fails)
        one.answer("a", words(1, 32 * CHUNKS + 5))
    assert side.shared.tier.in_use()["shared_writing_chunks"] == 0
    assert not side.has_pending_work()
