# SPDX-License-Identifier: Apache-2.0
"""Steps that only go on are not looked at: above vLLM's real schedulers nothing is forgotten for it."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

CHUNK = 32


def stored_tokens(one, name):
    """Forget vLLM's own blocks, and return how much of a prompt and its answer the store has."""
    one.forget_memory()
    tokens, _ = one._wanted[name]
    turn = one.add(f"{name} again", (*tokens, *one.answers[name], 1), 1)
    found = one.connector._scheduler.matched_tokens(turn, 0)
    one.run()
    return found


# Pipeline stages hold batches of different requests, which take turns; else one step is planned ahead.
@pytest.mark.parametrize(
    ("asynchronous", "late"), [(False, 0), (False, 1), (False, 2), (False, 3), (True, 1)]
)
@pytest.mark.parametrize("lengths", [(40, 40), (40, 45, 61, 33), (31, 63, 64, 65, 100)])
def test_every_chunk_is_stored_whichever_batch_its_request_is_in(server, words, late, asynchronous, lengths):
    one = server(asynchronous=asynchronous)
    one.late = late
    for n, length in enumerate(lengths):
        one.add(str(n), words(n, length), 75)
        one.step()
    one.run(settled=True)
    assert one.worker.quiet_steps, "most steps only go on"
    for n, length in enumerate(lengths):
        one.check(str(n))
        # The last token's KV is never computed.
        assert stored_tokens(one, str(n)) == (length + 74) // CHUNK * CHUNK, n


def test_a_shared_store_gets_every_chunk_of_an_answer_though_most_steps_are_not_looked_at(
    server, sharing, pool, words, monkeypatch
):
    one = server(shared=sharing(pool, write="always"))
    chunks, looked = one.connector._scheduler._chunks, []
    look = chunks.look
    monkeypatch.setattr(chunks, "look", lambda *step: (looked.append(len(step[0])), look(*step))[1])
    lengths = (40, 45, 61, 33)
    for n, length in enumerate(lengths):
        one.add(str(n), words(n, length), 75)
        one.step()
        one.settle()
    one.run(settled=True)
    for n in range(len(lengths)):
        one.check(str(n))
    assert len(pool.objects) == sum((length + 74) // CHUNK for length in lengths)
    # Without a request there is nothing to leave out: such steps wait for the store's answer.
    assert sum(map(bool, looked)) < 40, "of more than 75"
