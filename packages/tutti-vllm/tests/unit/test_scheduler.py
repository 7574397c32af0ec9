# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side with plain requests: what is promised, what is stored, what is told to the workers."""

import errno
from dataclasses import dataclass, field

import pytest

from tutti_engine import SKIP_BLOCK, Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.messages import StepReport
from tutti_vllm.scheduler_side.scheduler import SchedulerSide

# Chunks of 4 blocks of 16 tokens; hashes of 16 tokens.
GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
CHUNK = 64
SUM = b"s" * 8
LAYOUT = StoreLayout(("/nowhere",), 1, 16384, 16384, 4, 4)


@dataclass
class Request:
    request_id: str
    num_tokens: int
    num_computed_tokens: int = 0
    salt: str = ""
    cache_salt: str | None = None
    block_hashes: list = field(default_factory=list)

    def __post_init__(self):
        self.block_hashes = [f"{self.salt}{n}".encode() for n in range(self.num_tokens // 16)]


class Rig:
    def __init__(self, places=64, ranks=1):
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(places), ranks=ranks)
        self.side = SchedulerSide(self.engine, None, hash_tokens=16)

    def add(self, request_id, tokens, salt=""):
        request = Request(request_id, tokens, salt=salt)
        self.side.add_request(request)
        return request

    def step(self, scheduled, drafts=None, tables=None):
        tables = tables or {}
        return self.side.build_orders(
            {r.request_id: n for r, n in scheduled.items()}
            if not isinstance(scheduled, list)
            else dict(scheduled),
            drafts or {},
            lambda request_id: (tables.get(request_id, list(range(100, 200))),),
        )

    def confirm(self, orders, ok=True):
        results = []
        for plan in orders.stores:
            sums = tuple(SUM if ok else None for _ in plan.transfers)
            results.append(StoreResult(plan.plan_id, sums, errno=0 if ok else errno.EIO))
        self.side.take_report(StepReport({0: tuple(results)}))

    def cached(self, tokens, salt=""):
        """Store the whole chunks of a prompt."""
        request = self.add("filler", tokens, salt)
        self.confirm(self.step([("filler", tokens)]))
        self.side.remove_request("filler")
        return request


@pytest.fixture
def rig():
    return Rig()


@pytest.mark.parametrize(
    ("stored", "prompt", "local", "expected"),
    [
        (256, 256, 0, 192),  # an exact multiple leaves its last chunk: something has to be computed
        (256, 257, 0, 256),
        (256, 300, 0, 256),
        (256, 100, 0, 64),  # a prefix that ends inside a chunk
        (256, 64, 0, 0),
        (256, 300, 64, 192),
        (256, 300, 80, 176),  # the local hit ends inside a chunk
        (256, 300, 256, 0),
        (256, 300, 288, 0),  # more is in memory than on disk
        (0, 300, 0, 0),
    ],
)
def test_promise(rig, stored, prompt, local, expected):
    if stored:
        rig.cached(stored)
    request = rig.add("r", prompt)
    for _ in range(3):
        assert rig.side.matched_tokens(request, local) == expected


def test_asking_pins_nothing(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    rig.side.matched_tokens(request, 0)
    assert rig.engine.planner.pending_loads == 0
    rig.side.reset()
    assert rig.side.matched_tokens(request, 0) == 0


def test_a_load_names_only_blocks_beyond_the_local_hit(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    tokens = rig.side.matched_tokens(request, 80)
    rig.side.plan_load(
        request, ([7, 3, 9, 1, 20, 12, 14, 30, 31, 40, 41, 42, 43, 44, 45, 46, 47, 48],), tokens
    )
    (load,) = rig.step({}).loads
    assert load.block_ids == (12, 14, 30, 31, 40, 41, 42, 43, 44, 45, 46)
    assert [t.block_ids[0] for t in load.plan.transfers] == [
        (SKIP_BLOCK, 12, 14, 30),
        (31, 40, 41, 42),
        (43, 44, 45, 46),
    ]
    assert rig.step({}).loads == ()


def test_chunks_that_left_after_the_promise_are_still_ordered(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    tokens = rig.side.matched_tokens(request, 0)
    rig.side.reset()
    rig.side.plan_load(request, (list(range(1, 20)),), tokens)
    (load,) = rig.step({}).loads
    assert len(load.plan.transfers) == 4
    assert all(t.chunk_id is None for t in load.plan.transfers)


def test_a_load_that_cannot_be_planned_is_ordered_as_failed(rig, monkeypatch):
    rig.cached(256)
    request = rig.add("r", 300)
    tokens = rig.side.matched_tokens(request, 0)
    monkeypatch.setattr(rig.engine, "plan_load", lambda wanted: 1 / 0)
    rig.side.plan_load(request, (list(range(1, 20)),), tokens)
    (load,) = rig.step({}).loads
    assert load.plan is None and load.block_ids == tuple(range(1, 17))
    # Else vLLM, back at the request's start, would ask for the same load without end.
    assert rig.side.promise(request, 0) == (0, False)


def test_a_failing_store_plan_does_not_lose_loads(rig, monkeypatch):
    rig.cached(256)
    request = rig.add("r", 300)
    rig.side.plan_load(request, (list(range(1, 20)),), rig.side.matched_tokens(request, 0))
    other = rig.add("o", 128, salt="x")
    monkeypatch.setattr(rig.engine, "plan_store", lambda candidates: 1 / 0)
    orders = rig.step([(other.request_id, 128)])
    assert len(orders.loads) == 1 and orders.stores == ()


def test_a_step_whose_blocks_cannot_be_named_may_write_to_any_and_keeps_its_orders(rig):
    rig.side.names_rewritten = True
    rig.cached(256)
    request = rig.add("r", 300)
    rig.side.plan_load(request, (list(range(1, 20)),), rig.side.matched_tokens(request, 0))
    other = rig.add("o", 128, salt="x")
    orders = rig.step([(other.request_id, 128)])
    told = rig.side.add_rewritten(orders, object())
    assert told.rewritten is None and told.loads == orders.loads and told.stores == orders.stores


def test_chunked_prefill_stores_each_chunk_once_with_its_own_blocks(rig):
    request = rig.add("r", 200)
    table = list(range(50, 63))
    keys = []
    for tokens in (50, 50, 50, 50):
        orders = rig.step([("r", tokens)], tables={"r": table})
        for plan in orders.stores:
            for t in plan.transfers:
                chunk = len(keys)
                assert t.block_ids == (tuple(table[4 * chunk : 4 * chunk + 4]),)
                keys.append(t.key)
        request.num_computed_tokens += tokens
    assert keys == [b"3", b"7", b"11"]


def test_tokens_that_were_only_guessed_are_not_stored(rig):
    request = rig.add("r", 64)
    request.num_computed_tokens = 60
    assert rig.step([("r", 4)], drafts={"r": [1, 2]}).stores == ()
    assert len(rig.step([("r", 4)]).stores) == 1


def test_after_a_step_back_the_chunk_is_considered_again(rig):
    request = rig.add("r", 128)
    orders = rig.step([("r", 128)])
    rig.confirm(orders, ok=False)
    request.num_computed_tokens = 128
    assert rig.step([("r", 1)]).stores == ()
    request.num_computed_tokens = 0
    assert len(rig.step([("r", 128)]).stores[0].transfers) == 2


def test_blocks_that_vllm_does_not_keep_are_not_stored(rig):
    rig.add("r", 128)
    orders = rig.step([("r", 128)], tables={"r": [5, 6, 7, 8, 0, 0, 0, 0]})
    assert [t.block_ids for t in orders.stores[0].transfers] == [((5, 6, 7, 8),)]


def test_what_goes_on_from_blocks_that_vllm_does_not_keep_is_not_stored_either(rig):
    rig.add("r", 128)
    assert rig.step([("r", 128)], tables={"r": [0, 0, 0, 0, 5, 6, 7, 8]}).stores == ()


def test_two_requests_with_the_same_prompt_store_it_once(rig):
    rig.add("a", 64)
    rig.add("b", 64)
    (plan,) = rig.step([("a", 64), ("b", 64)]).stores
    assert len(plan.transfers) == 1


def test_what_is_known_already_is_not_stored_and_costs_no_table(rig):
    rig.cached(128)
    rig.add("r", 128)

    def no_table(request_id):
        raise AssertionError("asked for a block table in vain")

    assert rig.side.build_orders({"r": 128}, {}, no_table).stores == ()


def test_an_idle_engine_goes_on_until_stores_are_reported(rig):
    rig.add("r", 64)
    orders = rig.step([("r", 64)])
    rig.side.remove_request("r")
    assert rig.side.has_pending_work()
    rig.confirm(orders)
    assert not rig.side.has_pending_work()


def test_the_first_step_tells_the_workers_where_the_store_is():
    engine = TuttiEngine(GEOMETRY, chunk_ids=range(4))
    side = SchedulerSide(engine, LAYOUT, hash_tokens=16)
    assert side.has_pending_work()
    assert side.build_orders({}, {}, lambda request_id: None).layout == LAYOUT
    assert not side.has_pending_work()
    assert side.build_orders({}, {}, lambda request_id: None).layout is None


def failing_load(rig, request, **how):
    rig.side.plan_load(request, (list(range(1, 20)),), rig.side.matched_tokens(request, 0))
    plan = rig.step({}).loads[0].plan
    rig.side.take_report(StepReport({0: (LoadResult(plan.plan_id, (1,), **how),)}))


def test_after_a_failed_load_the_request_is_computed_and_the_chunk_is_gone(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    failing_load(rig, request, errno=errno.EBADMSG)
    assert rig.side.matched_tokens(request, 0) == 0
    assert rig.side.matched_tokens(rig.add("s", 300), 0) == 64
    assert rig.engine.planner.pending_loads == 0


def test_a_load_that_was_not_tried_leaves_its_chunk_to_others(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    failing_load(rig, request, errno=errno.ECANCELED, untried=(1,))
    assert rig.side.matched_tokens(request, 0) == 0, "or it would ask for ever"
    assert rig.side.matched_tokens(rig.add("s", 300), 0) == 256


def test_what_was_computed_before_a_reset_is_not_stored_after_it(rig):
    request = rig.add("r", 128)
    rig.confirm(rig.step([("r", 64)]))
    assert rig.side.reset()
    request.num_computed_tokens = 64
    assert rig.step([("r", 64)]).stores == ()
    rig.add("s", 128)
    assert len(rig.step([("s", 128)]).stores[0].transfers) == 2


def test_a_chunk_that_was_begun_before_a_reset_is_not_stored_either(rig):
    request = rig.add("r", 128)
    rig.step([("r", 32)])
    assert rig.side.reset()
    request.num_computed_tokens = 32
    assert rig.step([("r", 96)]).stores == ()


def test_a_report_that_cannot_be_taken_does_not_lose_the_others(rig, monkeypatch):
    rig.cached(256)
    requests = [rig.add(name, 300) for name in "ab"]
    for request in requests:
        rig.side.plan_load(request, (list(range(1, 20)),), rig.side.matched_tokens(request, 0))
    plans = [load.plan for load in rig.step({}).loads]
    complete = rig.engine.complete_load
    bad = plans[0].plan_id
    monkeypatch.setattr(
        rig.engine,
        "complete_load",
        lambda result, rank: 1 / 0 if result.plan_id == bad else complete(result, rank),
    )
    rig.side.take_report(StepReport({0: tuple(LoadResult(plan.plan_id) for plan in plans)}))
    assert rig.engine.planner.pending_loads == 1


def test_a_load_is_over_once_each_rank_has_said_so():
    rig = Rig(ranks=2)
    request = rig.add("filler", 128)
    (plan,) = rig.step([("filler", 128)]).stores
    for rank in range(2):
        rig.side.take_report(StepReport({rank: (StoreResult(plan.plan_id, (SUM,) * len(plan.transfers)),)}))
    request = rig.add("r", 300)
    rig.side.plan_load(request, (list(range(1, 20)),), rig.side.matched_tokens(request, 0))
    (load,) = rig.step({}).loads
    for rank, loading in ((0, 1), (0, 1), (1, 0)):
        rig.side.take_report(StepReport({rank: (LoadResult(load.plan.plan_id),)}))
        assert rig.engine.planner.pending_loads == rig.side.in_use()["unreported_loads"] == loading


def test_a_rank_that_cannot_use_its_cache_ends_promises_and_stores(rig):
    rig.cached(256)
    request = rig.add("r", 300)
    rig.side.take_report(StepReport(unusable={1: "no such layout"}))
    assert rig.side.matched_tokens(request, 0) == 0
    rig.add("s", 64, salt="x")
    assert rig.step([("s", 64)]).stores == ()


def test_a_request_that_is_not_looked_after_gets_nothing(rig):
    rig.cached(256)
    assert rig.side.matched_tokens(Request("stranger", 300), 0) == 0
    assert rig.step([("stranger", 300)]).stores == ()


def test_a_prompt_is_counted_once_with_what_was_promised_of_it_at_first(rig):
    rig.cached(256)
    first = rig.side.counters()
    request = rig.add("r", 300)
    tokens = rig.side.matched_tokens(request, 0)
    assert rig.side.counters()["prompts"] == first["prompts"], "asking counts no prompt"
    rig.side.plan_load(request, [list(range(1, 20))], tokens)
    rig.step({})
    request.num_computed_tokens = tokens
    rig.step([("r", 44)])
    rig.side.plan_load(request, [list(range(1, 20))], tokens)
    moved = {name: total - first.get(name, 0) for name, total in rig.side.counters().items()}
    assert (moved["prompts"], moved["prompt_tokens"], moved["hits"], moved["hit_tokens"]) == (1, 300, 1, 256)


def test_an_answer_fills_the_first_chunk_of_a_prompt_that_was_shorter(rig):
    request = rig.add("r", 50)
    assert rig.step([("r", 50)]).stores == ()
    request.num_tokens, request.num_computed_tokens = 65, 50
    request.__post_init__()
    (plan,) = rig.step([("r", 14)]).stores
    assert len(plan.transfers) == 1


def decode(rig, requests, looked):
    """Compute a token of each request; return the stored chunks' number, and note whether it was looked."""
    before = len(looked)
    orders = rig.step([(request.request_id, 1) for request in requests])
    for request in requests:
        request.num_computed_tokens += 1
        request.num_tokens += 1
        request.block_hashes = [f"{request.salt}{n}".encode() for n in range(request.num_tokens // 16)]
    count = sum(len(plan.transfers) for plan in orders.stores)
    if count:
        rig.confirm(orders)
    return count, len(looked) > before


@pytest.fixture
def looked(rig, monkeypatch):
    """Steps whose requests were looked at."""
    seen = []
    plan = rig.side._plan_stores
    monkeypatch.setattr(rig.side, "_plan_stores", lambda *args: (seen.append(1), plan(*args))[1])
    return seen


def running(rig, name, tokens):
    """A request that has computed its prompt."""
    request = rig.add(name, tokens, salt=name)
    rig.confirm(rig.step([(name, tokens)]))
    request.num_computed_tokens, request.num_tokens = tokens, tokens + 1
    return request


def test_steps_that_only_go_on_are_not_looked_at_and_every_chunk_is_stored_in_its_step(rig, looked):
    requests = [running(rig, "a", 60), running(rig, "b", 100)]
    steps = [decode(rig, requests, looked) for _ in range(70)]
    # Chunks end at 64 and 128 tokens, that is with the 4th and 68th token of "a" and the 28th of "b".
    assert [step + 1 for step, (stored, _) in enumerate(steps) if stored] == [4, 28, 68]
    assert all(seen for stored, seen in steps if stored)
    assert sum(seen for _, seen in steps) < 12


def test_a_request_that_takes_anothers_place_is_stored_in_its_step(rig, looked):
    one, other, third = (running(rig, name, tokens) for name, tokens in (("a", 70), ("b", 70), ("c", 120)))
    for _ in range(3):
        decode(rig, [one, other], looked)
    steps = [decode(rig, [one, third], looked) for _ in range(70)]
    stored = [step for step, (count, _) in enumerate(steps) if count]
    assert stored == [7, 54], "the chunks of both that end at 128"


def test_news_end_the_calm(rig, looked):
    one = running(rig, "a", 70)
    decode(rig, [one], looked)
    decode(rig, [one], looked)
    assert decode(rig, [one], looked) == (0, False)
    rig.cached(64, salt="z")
    waiting = rig.add("w", 100, salt="z")
    for _ in range(2):
        decode(rig, [one], looked)
    for news in (
        lambda: rig.side.plan_load(waiting, ([7, 3, 9, 1, 20, 12, 14],), rig.side.matched_tokens(waiting, 0)),
        lambda: rig.side.take_report(StepReport({})),
        lambda: rig.add("z", 10),
        lambda: rig.side.remove_request("z"),
    ):
        news()
        assert decode(rig, [one], looked) == (0, True)
    assert decode(rig, [one], looked) == (0, False)
    before = len(looked)
    rig.step([("a", 2)])
    assert len(looked) == before + 1, "more than a token may end a chunk at any time"
    assert decode(rig, [one], looked) == (0, False)


def test_statistics_can_wait_while_requests_only_go_on(rig, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tutti_vllm.scheduler_side.scheduler.time.monotonic", lambda: now[0])
    asked = []
    monkeypatch.setattr(rig.side.meter, "take", lambda *, broken: asked.append(now[0]))
    one = running(rig, "a", 70)
    for _ in range(2):  # the first one ends the prefill
        decode(rig, [one], [])
    rig.side.take_stats()
    for _ in range(4):
        now[0] += 0.1
        decode(rig, [one], [])
        rig.side.take_stats()
    assert len(asked) == 2, "nothing for a quarter of a second"
    rig.side.remove_request("a")
    rig.side.take_stats()
    assert len(asked) == 3, "the end of a request is news"
