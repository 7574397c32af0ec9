# SPDX-License-Identifier: Apache-2.0
"""A worker's side: every promise ends as a load or as an error, also when the store cannot be opened."""

import errno
import time

import pytest

from tutti_engine import SKIP_BLOCK, ChunkTransfer, Geometry, LoadPlan, StorePlan, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.fakes import DelayedBackend
from tutti_vllm.messages import RequestLoad, StepOrders, StepReport
from tutti_vllm.worker_side.worker import REST_SECONDS, WorkerSide, leave_pages_here

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
NOTHING = StepOrders()
LAYOUT = StoreLayout(("/nowhere",), 2, 8192, 16384, 8, 8)


def store_plan(plan_id, chunk_id, blocks):
    return StorePlan(plan_id, (ChunkTransfer(b"k", chunk_id, (blocks,)),))


def load_order(request_id, plan_id, chunk_id, blocks, sums):
    plan = LoadPlan(plan_id, (ChunkTransfer(b"k", chunk_id, (blocks,), (sums,)),))
    return RequestLoad(request_id, tuple(b for b in blocks if b != SKIP_BLOCK), plan)


def engine():
    backend = MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
    return TuttiEngine(GEOMETRY, backend=backend)


class Rig:
    def __init__(self, open_engine=None, **options):
        self.pages = [bytearray(16 * 4096) for _ in range(2)]
        self.side = WorkerSide(0, open_engine or (lambda layout: engine()), **options)
        self.side.register(PlainMover(GEOMETRY, [memoryview(p) for p in self.pages]))

    def step(self, orders=NOTHING):
        self.side.begin_step(orders)
        self.side.start_loads()
        self.side.finish_step()
        self.side.collect()
        return self.side.take_received(), self.side.take_bad_blocks(), self.side.take_report()

    def until(self, done):
        """Run empty steps until ``done`` accepts one of them."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self.step()
            if done(answer):
                return answer
        raise AssertionError("nothing came")

    def store(self, plan):
        answer = self.step(StepOrders(LAYOUT, stores=(plan,)))
        report = answer[2] or self.until(lambda a: a[2])[2]
        return report.results[0][0]


@pytest.fixture
def rig():
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.side.shutdown(5.0)


def test_a_store_is_reported_and_its_load_brings_the_bytes_back(rig):
    rig = rig()
    for layer in range(2):
        rig.pages[layer][3 * 4096 : 5 * 4096] = bytes([layer + 1]) * 8192
    result = rig.store(store_plan(1, 2, (3, 4)))
    order = load_order("r", 2, 2, (SKIP_BLOCK, 9), result.checksums[0])
    received, bad, report = rig.step(StepOrders(LAYOUT, loads=(order,)))
    if not received:
        received, bad, report = rig.until(lambda a: a[0])
    assert (received, bad) == ({"r"}, set())
    assert report.results[0][0].failed == ()
    assert rig.pages[1][9 * 4096 : 10 * 4096] == bytes([2]) * 4096
    assert rig.pages[1][8 * 4096 : 9 * 4096] == bytes(4096)


class Gated:
    """A worker whose reads end when somebody rests for them; the store's one chunk is in pages 1 and 2."""

    def __init__(self, rig):
        self.inner = MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
        self.backend = DelayedBackend(self.inner, polls=1)
        self.engine = TuttiEngine(GEOMETRY, backend=self.backend)
        self.rests = []
        self.rig = rig(lambda layout: self.engine)
        wait = self.engine.wait_for_results

        def rest(deadline):
            self.rests.append(deadline - time.monotonic())
            while self.backend.waiting == 0:
                time.sleep(0.001)
            self.backend.release(1)
            return wait(time.monotonic() + 30)

        self.engine.wait_for_results = rest

    def order(self, *requests):
        """Return orders of loads, after a step without news."""
        sums = self.rig.store(store_plan(1, 0, (1, 2))).checksums[0]
        self.rig.step()
        self.backend.polls = None
        return tuple(
            load_order(name, 2 + n, 0, (5 + 2 * n, 6 + 2 * n), sums) for n, name in enumerate(requests)
        )

    def load(self, *, idle):
        """Order a load and run the step that starts it; return what that step tells."""
        return self.rig.step(StepOrders(LAYOUT, loads=self.order("r"), idle=idle))


def test_a_step_that_computes_nothing_rests_until_a_load_ends(rig):
    one = Gated(rig)
    assert one.load(idle=True)[0] == {"r"}
    assert len(one.rests) == 1 and 0 < one.rests[0] <= REST_SECONDS
    one.rig.step(StepOrders(idle=True))
    assert len(one.rests) == 1, "nothing is waited for any more"


def test_a_step_that_computes_does_not_rest(rig):
    one = Gated(rig)
    assert one.load(idle=False)[0] == set()
    one.rig.step()
    assert one.rests == []
    assert one.rig.step(StepOrders(idle=True))[0] == {"r"} and len(one.rests) == 1


def test_a_step_after_news_does_not_rest_as_vllm_may_look_at_them_only_then(rig):
    one = Gated(rig)
    orders = one.order("r", "s")
    assert one.rig.step(StepOrders(LAYOUT, loads=orders, idle=True))[0] == {"r"} and len(one.rests) == 1
    assert one.rig.step(StepOrders(idle=True))[0] == set() and len(one.rests) == 1
    assert one.rig.step(StepOrders(idle=True))[0] == {"s"} and len(one.rests) == 2


def test_damage_is_reported_as_received_with_bad_blocks(rig):
    rig = rig()
    result = rig.store(store_plan(1, 2, (3, 4)))
    order = load_order("r", 2, 2, (SKIP_BLOCK, 9), b"\xff" * len(result.checksums[0]))
    answer = rig.step(StepOrders(LAYOUT, loads=(order,)))
    received, bad, report = answer if answer[0] else rig.until(lambda a: a[0])
    assert (received, bad) == ({"r"}, {9})
    assert report.results[0][0].errno == errno.EBADMSG


def test_a_load_without_a_plan_fails_at_once(rig):
    rig = rig()
    received, bad, report = rig.step(StepOrders(None, loads=(RequestLoad("r", (4, 5), None),)))
    assert (received, bad, report) == ({"r"}, {4, 5}, None)


def test_where_blocks_cannot_tell_the_request_is_reported(rig):
    one = rig(by_request=True)
    sums = one.store(store_plan(1, 0, (1, 2))).checksums[0]
    order = load_order("bad", 2, 0, (5, 6), bytes(len(sums)))
    one.side.begin_step(StepOrders(LAYOUT, loads=(order, RequestLoad("lost", (7, 8), None))))
    one.side.start_loads()
    received = failed = frozenset()
    deadline = time.monotonic() + 30
    while received != {"bad", "lost"} and time.monotonic() < deadline:
        one.side.collect()
        received |= one.side.take_received()
        failed |= one.side.take_failed()
    assert received == failed == {"bad", "lost"}
    assert one.side.take_bad_blocks() == set()
    assert one.side.take_failed() == set()


def test_a_rank_that_holds_a_copy_loads_and_does_not_store(rig):
    asked = []

    def open_engine(layout):
        made = engine()
        made.store = asked.append
        return made

    one = rig(open_engine, stores=False)
    assert one.step(StepOrders(LAYOUT, stores=(store_plan(1, 0, (1, 2)),)))[2] is None
    assert asked == [] and one.side.in_use()["orders"] == 0
    order = load_order("r", 2, 0, (5, 6), b"s" * 16)
    received, bad, _ = one.step(StepOrders(LAYOUT, loads=(order,)))
    if not received:
        received, bad, _ = one.until(lambda answer: answer[0])
    assert received == {"r"} and bad == {5, 6}


def test_a_store_that_cannot_be_opened_fails_every_plan_and_is_tried_again(rig):
    doors = []

    def open_engine(layout):
        doors.append(layout)
        if len(doors) <= 2:
            raise OSError(errno.EROFS, "read-only")
        return engine()

    rig = rig(open_engine)
    order = load_order("r", 2, 0, (4, 5), bytes(16))
    received, bad, report = rig.step(StepOrders(LAYOUT, loads=(order,)))
    assert (received, bad) == ({"r"}, {4, 5})
    result = report.results[0][0]
    assert (result.failed, result.untried, result.errno) == ((0,), (0,), errno.EROFS)
    assert rig.store(store_plan(3, 0, (1, 2))).errno == 0
    assert doors == [LAYOUT] * 3


def test_each_attempt_that_fails_gives_back_what_it_opened(rig):
    opened, closed = [], []

    class Refusing(MemoryBackend):
        def bind_staging(self, window):
            raise OSError(errno.ENOMEM, "memory cannot be registered")

        def shutdown(self):
            closed.append(self)
            super().shutdown()

    def open_engine(layout):
        opened.append(Refusing(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8))
        return TuttiEngine(GEOMETRY, backend=opened[-1])

    one = rig(open_engine)
    for plan_id in range(3):
        assert one.store(store_plan(plan_id, 0, (1, 2))).errno == errno.ENOMEM
    assert opened == closed and opened


def test_loads_that_are_not_even_begun_are_reported_to_both_sides(rig, monkeypatch):
    one = rig()
    monkeypatch.setattr(one.side._meter, "begin_load", lambda plan_id: 1 / 0)
    orders = [load_order(name, number, 0, (4 + number,) * 2, bytes(16)) for number, name in enumerate("ab")]
    received, bad, report = one.step(StepOrders(LAYOUT, loads=tuple(orders)))
    assert received == {"a", "b"} and bad == {4, 5}
    # The planner lets go of their chunks only when it hears of every plan.
    assert [(each.plan_id, each.failed, each.untried) for each in report.results[0]] == [
        (0, (0,), (0,)),
        (1, (0,), (0,)),
    ]
    assert not any(one.side.in_use().values())


def test_the_store_is_opened_as_soon_as_its_place_is_known(rig):
    doors = []

    def open_engine(layout):
        doors.append(layout)
        return engine()

    rig = rig(open_engine)
    assert rig.step(StepOrders(LAYOUT)) == (set(), set(), None)
    assert doors == [LAYOUT]


def test_a_step_that_may_write_to_any_block_has_all_of_them_given_back(rig, monkeypatch):
    given_back = []
    monkeypatch.setattr(TuttiEngine, "leave_pages", lambda self: given_back.append("all"))
    monkeypatch.setattr(TuttiEngine, "reuse_blocks", lambda self, blocks: given_back.append(blocks))
    one = rig()
    one.step(StepOrders(LAYOUT))
    for rewritten in ((), (3, 4), None):
        one.step(StepOrders(rewritten=rewritten))
    assert given_back == [(3, 4), "all"]


def test_blocks_that_are_not_given_back_keep_no_order_from_its_worker(rig, monkeypatch):
    def refuse(self, blocks):
        raise RuntimeError("no such stream")

    one = rig()
    one.step(StepOrders(LAYOUT))
    monkeypatch.setattr(TuttiEngine, "reuse_blocks", refuse)
    one.side.begin_step(StepOrders(stores=(store_plan(1, 0, (1, 2)),), rewritten=(3,)))
    one.side.finish_step()
    assert one.until(lambda answer: answer[2])[2].results[0][0].checksums[0] is not None


def test_all_sides_of_a_process_can_be_had_to_leave_their_pages(rig, monkeypatch):
    left = []
    monkeypatch.setattr(TuttiEngine, "leave_pages", lambda self: left.append(self))
    sides = [rig() for _ in range(3)]
    for one in sides[:2]:
        one.step(StepOrders(LAYOUT))
    leave_pages_here()
    assert {id(each) for each in left} == {id(one.side._engine) for one in sides[:2]}


def test_a_cache_that_cannot_be_used_is_told_once(rig):
    rig = rig()
    rig.side.refuse("strange layout")
    assert rig.step()[2].unusable == {0: "strange layout"}
    assert rig.step()[2] is None


def test_reports_of_ranks_join():
    one = StepReport({0: ()}, {0: "a"})
    two = StepReport({1: ()}, {})
    assert one.merge(two) == StepReport({0: (), 1: ()}, {0: "a"})


def step_with_stats(rig, orders=NOTHING):
    """A step with all that vLLM asks; return whether it was quiet."""
    rig.step(orders)
    quiet = rig.side.quiet
    rig.side.take_stats()
    return quiet


def test_a_step_is_quiet_only_when_nothing_is_under_way_or_untold(rig):
    rig = rig()
    assert not step_with_stats(rig), "no statistics were told yet"
    assert step_with_stats(rig)
    assert not step_with_stats(rig, StepOrders(LAYOUT, stores=(store_plan(1, 2, (3, 4)),)))
    deadline = time.monotonic() + 30
    while not step_with_stats(rig) and time.monotonic() < deadline:
        pass
    assert rig.side.quiet and rig.side.in_use()["unfinished_plans"] == 0
    for orders in (StepOrders(rewritten=(5,)), StepOrders(rewritten=None), StepOrders(unwanted=(7,))):
        assert not step_with_stats(rig, orders)
    rig.side.refuse("no pages")
    assert not step_with_stats(rig)


def test_what_is_still_being_stored_keeps_steps_from_being_quiet(rig):
    one = Gated(rig)
    one.backend.polls = None
    orders = StepOrders(LAYOUT, stores=(store_plan(1, 0, (1, 2)),))
    step_with_stats(one.rig, orders)
    step_with_stats(one.rig)
    assert not any(step_with_stats(one.rig) for _ in range(3))
    deadline = time.monotonic() + 30
    told = None
    while told is None and time.monotonic() < deadline:
        one.backend.release()
        told = one.rig.step()[2]
        one.rig.side.take_stats()
    assert told.results[0][0].checksums[0] is not None


@pytest.mark.parametrize(
    "orders",
    [
        StepOrders(LAYOUT),
        StepOrders(loads=(RequestLoad("r", (5,), None),)),
        StepOrders(stores=(store_plan(1, 2, (3, 4)),)),
        StepOrders(unwanted=(7,)),
        StepOrders(rewritten=(5,)),
        StepOrders(rewritten=None),
    ],
    ids=["layout", "loads", "stores", "unwanted", "rewritten", "all rewritten"],
)
def test_orders_of_any_kind_are_taken(rig, orders):
    rig = rig()
    step_with_stats(rig)
    assert step_with_stats(rig)
    assert not step_with_stats(rig, orders)


@pytest.mark.parametrize("name", ["_refused", "_results", "_received", "_bad_blocks", "_failed", "_waiting"])
def test_whatever_is_untold_keeps_a_step_from_being_quiet(rig, name):
    rig = rig()
    step_with_stats(rig)
    held = {"_refused": [0], "_results": [0], "_waiting": {0: 0}}.get(name, {"r"})
    setattr(rig.side, name, held)
    rig.side.begin_step(NOTHING)
    assert not rig.side.quiet
    setattr(rig.side, name, type(held)())
    rig.side.begin_step(NOTHING)
    assert rig.side.quiet


def test_no_step_is_quiet_where_a_store_is_shared(rig):
    rig = rig()
    step_with_stats(rig)
    assert step_with_stats(rig)
    rig.side.shared = object()
    rig.side.give_back = lambda blocks: None
    rig.side.begin_step(NOTHING)
    assert not rig.side.quiet
    rig.side.shared = None
