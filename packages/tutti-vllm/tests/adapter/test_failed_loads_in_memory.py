# SPDX-License-Identifier: Apache-2.0
"""What a failed layer-wise load and its step have spoilt is found by nobody in vLLM's own prefix cache.

vLLM shows the blocks of a load to others before it has ended, and leaves them to the request to compute
again; a request that ends before leaves them spoilt.
"""

import errno

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")


@pytest.fixture
def failing(server, words):
    """A server whose first prompt is only on disk, which fails. A step computes less than is loaded."""

    def make(policy="recompute"):
        one = server(
            settings={"load_mode": "layerwise", "break_even": False},
            policy=policy,
            max_num_batched_tokens=64,
        )
        one.answer("first", words(1, 200))
        one.forget_memory()
        one.backend.error = errno.EIO
        return one

    return make


@pytest.mark.parametrize("gone", ["aborted", "preempted"])
def test_a_request_that_ends_before_it_computes_again_leaves_nothing_spoilt(failing, words, gone):
    one = failing()
    one.add("a", words(1, 200))
    one.step()
    assert one.count("layerwise_loads") == 1 and one.count("load_failed_chunks") == 6
    one.backend.error = 0
    if gone == "aborted":
        one.abort("a")
    else:
        one.forget_memory(running=True)
    one.add("b", words(1, 200))
    one.add("longer", (*words(1, 200), *words(2, 60)))
    one.run()
    one.check("b", "longer", *(["a"] if gone == "preempted" else []))
    one.forget_memory()
    one.answer("c", words(1, 200))


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_an_abort_while_the_step_runs(failing, words, policy):
    # vLLM looks at aborts between a step and what came of it.
    one = failing(policy)
    one.add("a", words(1, 200))
    output = one.scheduler.schedule()
    result = one._join([worker.execute(output) for worker in one.workers])
    one.abort("a")
    one._flying.append((output, result))
    one._take_oldest()
    one.backend.error = 0
    one.answer("b", words(1, 200))


def test_others_wait_for_a_load_whose_blocks_they_would_share(failing, words):
    one = failing()
    one.add("a", words(1, 200))
    one.add("b", words(1, 200))
    output = one.step()
    assert list(output.num_scheduled_tokens) == ["a"]
    one.abort("a")
    one.backend.error = 0
    one.run()
    one.check("b")


def test_a_load_that_succeeds_is_shared_in_the_next_step(failing, words):
    one = failing()
    one.backend.error = 0
    one.add("a", words(1, 200))
    one.add("b", (*words(1, 200), *words(2, 30)))
    one.run()
    one.check("a", "b")
    assert one.count("load_chunks") == 6, "the second found them in memory"


def test_a_prompt_that_shares_nothing_does_not_wait(failing, words):
    one = failing()
    one.add("a", words(1, 200))
    one.add("other", words(3, 20))
    output = one.step()
    assert set(output.num_scheduled_tokens) == {"a", "other"}
    one.run()
    one.check("a", "other")
