# SPDX-License-Identifier: Apache-2.0
"""Every way a request can live and die, above vLLM's real schedulers."""

import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

BLOCK, CHUNK = 16, 32


@pytest.fixture(params=[False, True], ids=["synchronous", "overlapped"])
def overlapped(request):
    """Whether vLLM plans a step before the last one has ended."""
    return request.param


@pytest.fixture(params=["async", "layerwise"])
def mode(request):
    return request.param


def serve(server, mode, **how):
    return server(settings={"load_mode": mode}, **how)


def test_what_was_computed_comes_back(server, words, overlapped):
    one = server(asynchronous=overlapped)
    one.answer("a", words(1, 200), 5)
    one.forget_memory()
    one.answer("b", words(1, 200), 5)
    assert one.count("load_chunks") == 6


def test_chunked_prefill(server, words, mode):
    one = serve(server, mode, max_num_batched_tokens=48, enable_chunked_prefill=True)
    names = [f"{n}" for n in range(3)]
    for turn in range(3):
        for n in range(3):
            one.add(f"{turn}-{n}", words(n, 150 + 30 * n), 6)
        one.run()
        one.check(*(f"{turn}-{name}" for name in names))
        one.forget_memory()
    assert one.count("load_chunks") == 2 * (4 + 5 + 6)
    assert one.count("store_chunks") == 4 + 5 + 6


@pytest.mark.parametrize("as_new", [False, True], ids=["as a resumed one", "as a new one"])
def test_preempted_and_resumed_with_an_external_hit(server, words, mode, as_new):
    # Without vLLM's own cache a resumed request finds only what Tutti has of it.
    one = serve(server, mode, blocks=24, enable_prefix_caching=False)
    one.scheduler.use_v2_model_runner = as_new
    requests = [one.add(f"{n}", words(n, 90), 60) for n in range(4)]
    one.run(settled=True)  # what the preempted one had is stored before it comes back
    one.check(*(f"{n}" for n in range(4)))
    assert sum(request.num_preemptions for request in requests) > 0
    assert one.count("load_chunks") > 0


def test_preempted_under_overlapped_steps(server, words):
    one = server(asynchronous=True, blocks=24, enable_prefix_caching=False)
    requests = [one.add(f"{n}", words(n, 90), 60) for n in range(4)]
    one.run()
    one.check(*(f"{n}" for n in range(4)))
    assert sum(request.num_preemptions for request in requests) > 0
    assert one.count("load_chunks") > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_aborted_while_it_is_loaded(server, words, overlapped, ranks):
    one = server(asynchronous=overlapped, ranks=ranks)
    one.answer("a", words(1, 200))
    one.forget_memory()
    for backend in one.backends:
        backend.closed = "read"
    one.add("b", words(1, 200))
    one.until(lambda: one.read_batches_held() > 0)
    one.abort("b")
    for _ in range(4):
        one.step()
    free = one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert free == one.blocks - 1, "a drive that does not answer keeps the blocks of a request that is gone"
    assert one.scheduler.has_requests(), "the load's end is still to be told"

    # Others get the blocks; what arrives now must not be written there.
    one.add("c", words(2, 900), 1)
    one.step()
    for backend in one.backends:
        backend.open()
    one.run()
    one.check("c")
    assert one.count("load_chunks") == 0
    one.forget_memory()
    one.answer("d", words(1, 200))
    assert one.count("load_chunks") == 6, "nothing is known against the chunks"


def test_aborted_before_its_load_is_ordered(server, words, overlapped):
    one = server(asynchronous=overlapped)
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.add("b", words(1, 200))
    build = one.connector._scheduler.build_orders

    def abort_first(*what):
        # As if the abort came between the admission and the orders.
        one.connector._scheduler.remove_request("b")
        return build(*what)

    one.connector._scheduler.build_orders = abort_first
    one.step()
    one.connector._scheduler.build_orders = build
    one.abort("b")
    one.run()
    one.answer("c", words(1, 200))


@pytest.mark.parametrize("steps", range(6))
def test_aborted_after_any_number_of_steps(server, words, overlapped, steps):
    one = server(asynchronous=overlapped, max_num_batched_tokens=64, enable_chunked_prefill=True)
    one.answer("a", words(1, 150))
    one.forget_memory()
    one.add("b", words(1, 300), 8)
    one.add("c", words(2, 100), 8)
    for _ in range(steps):
        one.step()
    one.abort("b")
    one.run()
    one.check("c")
    one.forget_memory()
    one.answer("d", words(1, 300), 8)


def test_finished_with_stores_in_flight_and_no_further_request(server, words, overlapped):
    one = server(asynchronous=overlapped)
    one.backend.closed = "write"
    one.add("a", words(1, 200))
    one.until(lambda: "a" in one.finished)
    for _ in range(5):
        one.step()
    assert one.scheduler.has_requests(), "vLLM would stop stepping and nobody would hear of the stores"
    assert one.count("store_chunks") == 0
    one.backend.open()
    one.run()
    assert one.count("store_chunks") == 6


def test_blocks_of_a_finished_request_are_free_while_it_is_stored(server, words):
    one = server()
    one.backend.closed = "write"
    one.add("a", words(1, 200))
    one.until(lambda: "a" in one.finished)
    one.step()
    assert one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == one.blocks - 1
    # Others write to the same blocks meanwhile; what is stored is the copy.
    one.forget_memory()
    for n in range(5):
        one.add(f"other {n}", words(10 + n, 200))
    one.until(lambda: len(one.finished) == 6)
    one.backend.open()
    one.run()
    one.forget_memory()
    one.answer("b", words(1, 200))
    assert one.count("load_chunks") == 6


def test_a_hit_whose_blocks_cannot_be_had_is_asked_for_until_they_can(server, words, mode):
    one = serve(server, mode, blocks=24)
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.add("busy", words(2, 300), 30)
    one.step()
    one.step()
    asked = []
    promise = one.connector._scheduler.promise
    one.connector._scheduler.promise = lambda *what: asked.append(promise(*what)) or asked[-1]
    one.add("b", words(1, 200))
    for _ in range(10):
        one.step()
        assert one.connector.in_use().get("pins", 0) == 0
    assert len(asked) == 10 and len(set(asked)) == 1
    one.run()
    one.check("busy", "b")
    assert one.count("load_chunks") == 6


def test_local_and_external_hits_end_in_the_same_chunk(server, words, mode):
    one = serve(server, mode)
    whole = words(1, 200)
    one.answer("a", whole)
    one.forget_memory()
    head = whole[: 2 * CHUNK + BLOCK + 1]
    one.answer("head", head)
    before = one.count("load_chunks")
    one.answer("b", whole)
    assert one.count("load_chunks") - before == 4, "of the third chunk only its second block is missing"


def test_a_prompt_that_ends_with_a_chunk(server, words, mode, overlapped):
    one = serve(server, mode, asynchronous=overlapped)
    exact = words(1, 4 * CHUNK)
    one.answer("a", exact)
    assert one.count("store_chunks") == 4
    one.forget_memory()
    one.answer("b", exact)
    assert one.count("load_chunks") == 3, "something has to be computed"


def test_a_prompt_shorter_than_a_chunk(server, words):
    one = server()
    for name in "ab":
        one.answer(name, words(1, CHUNK - 1), 1)
        one.forget_memory()
    assert one.count("store_chunks") == one.count("load_chunks") == 0


def test_a_follow_up_turn_finds_what_was_answered(server, words, mode, overlapped):
    one = serve(server, mode, asynchronous=overlapped)
    first = words(1, 40)
    answer = one.answer("a", first, 100)
    one.forget_memory()
    one.answer("b", (*first, *answer, *words(2, 20)))
    assert one.count("load_chunks") == (40 + 100 - 1) // CHUNK


def test_prompt_logprobs_need_every_prompt_token_computed(server, words, mode):
    one = server(settings={"load_mode": mode, "break_even": True})
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.answer("b", words(1, 200), prompt_logprobs=1)
    assert one.count("load_chunks") == one.count("async_loads") == one.count("layerwise_loads") == 0
    assert one.count("break_even_loads") == 0, "vLLM would drop the answer"


def test_resets_with_and_without_the_connector(server, words, overlapped):
    one = server(asynchronous=overlapped)
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.answer("b", words(1, 200))
    assert one.count("load_chunks") == 6
    one.forget_memory(disk=True)
    one.answer("c", words(1, 200))
    assert one.count("load_chunks") == 6
    one.forget_memory()
    one.answer("d", words(1, 200))
    assert one.count("load_chunks") == 12


def test_a_reset_while_requests_run(server, words, mode):
    one = serve(server, mode)
    one.add("a", words(1, 200), 40)
    one.add("b", words(2, 100), 40)
    for _ in range(10):
        one.step()
    one.forget_memory(disk=True, running=True)
    one.run()
    one.check("a", "b")


def test_a_reset_while_stores_are_in_flight(server, words):
    one = server()
    one.backend.closed = "write"
    one.add("a", words(1, 200))
    one.until(lambda: "a" in one.finished)
    one.step()
    one.forget_memory(disk=True)
    one.backend.open()
    one.run()
    one.answer("b", words(1, 200))
    assert one.count("load_chunks") == 0, "what was written for the old weights is no hit"


def test_paused_while_a_load_is_in_flight(server, words):
    from vllm.v1.core.sched.interface import PauseState

    one = server()
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.backend.closed = "read"
    one.add("b", words(1, 200))
    one.until(lambda: one.read_batches_held() > 0)
    one.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    one.backend.open()
    for _ in range(5):
        one.step()
    assert "b" not in one.finished
    one.scheduler.set_pause_state(PauseState.UNPAUSED)
    one.run()
    one.check("b")
    assert one.count("load_chunks") == 6


def test_loads_beyond_the_bound_come_one_after_the_other(server, words):
    one = server(settings={"max_loading_bytes": 6 * 16384})
    for n in range(3):
        one.answer(f"{n}", words(n, 200))
    one.forget_memory()
    one.backend.closed = "read"
    for n in range(3):
        one.add(f"again {n}", words(n, 200))
    one.until(lambda: one.read_batches_held() > 0)
    for _ in range(5):
        one.step()
    assert one.count("async_loads") == 1
    assert one.count("load_turn_waits") >= 5
    one.backend.open()
    one.run()
    one.check("again 0", "again 1", "again 2")
    assert one.count("async_loads") == 3


@pytest.mark.parametrize("closed", ["read", "write"])
def test_shutdown_with_work_in_flight_ends_in_time(server, words, monkeypatch, closed):
    from tutti_vllm import connector_v1

    monkeypatch.setattr(connector_v1, "SHUTDOWN_SECONDS", 0.1)
    one = server()
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.backend.closed = closed
    one.add("b", words(1, 200))
    one.add("c", words(2, 200))
    for _ in range(5):
        one.step()
    one.worker.connector.shutdown()
    one.connector.shutdown()
    one.worker.connector.shutdown()
    one.connector.shutdown()
    one.backend.open()


def test_asleep_the_pages_are_left_alone(server, words, mode):
    # As vLLM 0.33 does it: transfers are drained, memory goes and comes back at the same addresses.
    one = serve(server, mode)
    one.answer("a", words(1, 200))
    connector = one.worker.connector
    for _ in range(2):
        connector.unregister_kv_caches()
    one.forget_memory()
    one.add("b", words(1, 200))
    one.run()
    one.check("b")
    assert one.count("load_chunks") == 0 and one.connector.degraded() == {}
    for _ in range(2):
        connector.restore_kv_caches()
    one.answer("c", words(2, 200))
    one.forget_memory()
    before = one.count("load_chunks")
    one.answer("d", words(2, 200))
    assert one.count("load_chunks") - before == 6


def test_asleep_nothing_that_was_in_flight_is_written(server, words):
    one = server()
    one.answer("a", words(1, 200))
    one.forget_memory()
    one.backend.closed = "read"
    one.add("b", words(1, 200))
    one.until(lambda: one.read_batches_held() > 0)
    one.worker.connector.unregister_kv_caches()
    before = [bytes(pages) for pages in one.worker.pages]
    one.backend.open()
    assert one.worker.connector._worker._engine.wait_idle(time.monotonic() + 30)
    assert [bytes(pages) for pages in one.worker.pages] == before
    one.worker.connector.restore_kv_caches()
    one.run()
    one.check("b")
