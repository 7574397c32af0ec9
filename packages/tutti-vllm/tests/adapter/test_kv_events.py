# SPDX-License-Identifier: Apache-2.0
"""A router that follows the events knows at any time what is on disk, as far as it was told."""

import errno
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import msgspec
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored, KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, maybe_convert_block_hash
from vllm.v1.request import Request

from tutti_engine import Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.catalogue.catalogue import Record
from tutti_vllm.messages import StepReport
from tutti_vllm.scheduler_side.kv_events import KVEvents, are_enabled
from tutti_vllm.scheduler_side.scheduler import SchedulerSide

# Chunks of 4 blocks of 16 tokens.
GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
CHUNK = 64
SUM = b"s" * 8

init_none_hash(sha256)


def request(seed, tokens, **more):
    source = random.Random(seed)
    prompt = [source.randrange(1000) for _ in range(tokens)]
    hasher = get_request_block_hasher(16, sha256)
    return Request(
        f"r{seed}-{tokens}", prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher, **more
    )


def external(hashes):
    """Return block hashes as vLLM publishes its own."""
    return [maybe_convert_block_hash(each) for each in hashes]


class Router:
    """Keeps the blocks that it was told of."""

    def __init__(self):
        self.blocks = set()

    def take(self, events):
        # As a router reads them.
        batch = msgspec.msgpack.decode(
            msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events)), type=KVEventBatch
        )
        for event in batch.events:
            assert event.medium == MEDIUM_STORAGE
            if isinstance(event, BlockStored):
                assert not self.blocks & set(event.block_hashes), "told twice"
                self.blocks |= set(event.block_hashes)
            else:
                assert isinstance(event, BlockRemoved)
                self.blocks -= set(event.block_hashes)


class Rig:
    def __init__(self, places=16, records=(), enabled=True):
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(places), records=records)
        self.side = SchedulerSide(self.engine, None, hash_tokens=16)
        if enabled:
            self.side.events = KVEvents(self.engine.planner, hashes_per_chunk=4, hash_tokens=16)
        self.router = Router()

    def step(self, *requests):
        """Compute whole prompts; return the orders."""
        for each in requests:
            self.side.add_request(each)
        scheduled = {each.request_id: each.num_tokens for each in requests}
        orders = self.side.build_orders(scheduled, {}, lambda request_id: (list(range(100, 200)),))
        for each in requests:
            self.side.remove_request(each.request_id)
        return orders

    def confirm(self, orders, ok=True):
        results = [
            StoreResult(
                plan.plan_id,
                tuple(SUM if ok else None for _ in plan.transfers),
                errno=0 if ok else errno.EIO,
            )
            for plan in orders.stores
        ]
        self.side.take_report(StepReport({0: tuple(results)}))

    def store(self, *requests, ok=True):
        self.confirm(self.step(*requests), ok)
        return self.take()

    def take(self):
        events = self.side.events.take()
        self.router.take(events)
        return events

    def load(self, one, code=0):
        self.side.add_request(one)
        tokens = self.side.matched_tokens(one, 0)
        self.side.plan_load(one, (list(range(1, 40)),), tokens)
        (load,) = self.step().loads
        failed = tuple(range(len(load.plan.transfers))) if code else ()
        self.side.take_report(StepReport({0: (LoadResult(load.plan.plan_id, failed, code),)}))
        self.side.remove_request(one.request_id)
        return tokens

    def on_disk(self, *requests):
        """Return the hashes of all whole chunks of prompts that are on disk."""
        found = set()
        for one in requests:
            hashes = [bytes(each) for each in one.block_hashes]
            for chunk in range(len(hashes) // 4):
                if self.engine.planner.lookup_prefix([hashes[4 * chunk + 3]]):
                    found |= set(external(hashes[4 * chunk : 4 * chunk + 4]))
        return found


def test_a_stored_chunk_is_told_as_its_blocks():
    rig = Rig()
    one = request(1, 150, cache_salt="tenant")
    orders = rig.step(one)
    assert rig.take() == [], "not before it is durable"
    rig.confirm(orders)
    first, second = rig.take()
    assert first.block_hashes == external(one.block_hashes[:4]) and first.parent_block_hash is None
    assert second.block_hashes == external(one.block_hashes[4:8])
    assert second.parent_block_hash == first.block_hashes[3]
    assert first.token_ids == one.prompt_token_ids[:64] and second.token_ids == one.prompt_token_ids[64:128]
    assert first.block_size == 16
    assert first.extra_keys == [("tenant",), None, None, None]
    assert rig.take() == []


def test_a_store_that_fails_is_not_told():
    rig = Rig()
    assert rig.store(request(1, 150), ok=False) == []
    assert rig.side.events._pending == {}


def test_what_goes_for_others_is_told_and_a_router_knows_what_is_there():
    rig = Rig(places=6)
    prompts = [request(seed, 200) for seed in range(8)]
    for _ in range(3):
        for one in prompts:
            rig.store(one)
            assert rig.router.blocks == rig.on_disk(*prompts)
    assert len(rig.router.blocks) == 6 * 4


def test_a_damaged_chunk_goes_with_what_goes_on_from_it():
    rig = Rig()
    one = request(1, 200)
    rig.store(one)
    rig.load(one, errno.EBADMSG)
    rig.take()
    assert rig.router.blocks == rig.on_disk(one) == set()


def test_a_reset_empties_the_router():
    rig = Rig()
    rig.store(request(1, 200), request(2, 200))
    assert len(rig.router.blocks) == 24
    rig.side.reset()
    rig.take()
    assert rig.router.blocks == set()


def test_after_a_restart_a_chunk_is_told_when_a_prompt_first_loads_it():
    one = request(1, 200)
    keys = [bytes(each) for each in one.block_hashes[3::4]]
    rig = Rig(records=[Record(key, slot, 1 + slot, (SUM,), 0) for slot, key in enumerate(keys)])
    assert rig.take() == []
    assert rig.load(one) == 3 * CHUNK
    assert len(rig.take()) == 3
    assert rig.router.blocks == rig.on_disk(one)
    rig.load(one)
    assert rig.take() == [], "told once"
    rig.side.reset()
    rig.take()
    assert rig.router.blocks == set()


def test_what_was_never_told_goes_unsaid():
    one = request(1, 100)
    rig = Rig(records=[Record(bytes(one.block_hashes[3]), 0, 1, (SUM,), 0)])
    rig.side.reset()
    assert rig.take() == []


def test_requests_that_store_nothing_are_not_looked_at_for_what_others_store():
    # Hundreds of long ones may be answered beside the one that completes a chunk.
    rig = Rig(places=64)
    idle = [request(seed, 640) for seed in range(2, 6)]
    rig.store(*idle)
    asked = []

    class Watched(list):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    for each in idle:
        each.num_computed_tokens = 630
        rig.side.add_request(each)
    own = request(1, 128)
    rig.side.add_request(own)
    rig.side.build_orders({each.request_id: 1 for each in idle}, {}, lambda _: (list(range(100, 200)),))
    for each in idle:
        each.block_hashes = Watched(each.block_hashes)
    asked.clear()
    step = {each.request_id: 1 for each in idle} | {own.request_id: 128}
    orders = rig.side.build_orders(step, {}, lambda _: (list(range(100, 200)),))
    rig.confirm(orders)
    assert len(rig.take()) == 2
    assert asked == []


def test_an_event_that_cannot_be_made_costs_no_store(monkeypatch):
    rig = Rig()
    monkeypatch.setattr(rig.side.events, "_event", lambda *_: 1 / 0)
    orders = rig.step(request(1, 150))
    assert len(orders.stores) == 1
    rig.confirm(orders)
    assert rig.engine.planner.resident_chunks == 2 and rig.take() == []


def test_nothing_is_kept_or_told_when_events_are_off():
    rig = Rig(enabled=False)
    rig.confirm(rig.step(request(1, 200)))
    assert rig.side.events is None and rig.engine.planner.resident_chunks == 3
    assert not are_enabled(SimpleNamespace(kv_events_config=None))
    assert not are_enabled(SimpleNamespace(kv_events_config=KVEventsConfig()))
    assert are_enabled(SimpleNamespace(kv_events_config=KVEventsConfig(enable_kv_cache_events=True)))


@pytest.mark.parametrize("seed", range(5))
def test_a_router_follows_whatever_happens(seed):
    source = random.Random(seed)
    rig = Rig(places=10)
    prompts = [request(100 + number, source.randrange(64, 400)) for number in range(12)]
    for _ in range(150):
        one = source.choice(prompts)
        action = source.random()
        if action < 0.6:
            rig.store(*source.sample(prompts, 2), ok=source.random() < 0.9)
        elif action < 0.95:
            rig.side.add_request(one)
            hit = rig.side.matched_tokens(one, 0)
            rig.side.remove_request(one.request_id)
            if hit:
                rig.load(one, source.choice((0, 0, errno.EBADMSG)))
        else:
            rig.side.reset()
        rig.engine.planner.store_breaker.succeeded()
        rig.take()
        assert rig.router.blocks == rig.on_disk(*prompts)
