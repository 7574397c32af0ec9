# SPDX-License-Identifier: Apache-2.0
"""vLLM's real schedulers, driven step by step, above a model that is small enough to be checked.

Every token that it gives depends on every byte of KV before it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
import time
from collections import deque
from types import SimpleNamespace

import pytest

from tutti_engine import ExecutionSettings, Geometry, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.fakes import DelayedBackend, FixedHandle

LAYERS = 2
BLOCK = 16
CHUNK = 32
ENTRY = 16
VOCABULARY = 997
GEOMETRY = Geometry(
    num_layers=LAYERS, block_tokens=BLOCK, blocks_per_chunk=CHUNK // BLOCK, page_bytes=BLOCK * ENTRY
)
LAYOUT = StoreLayout(("/nowhere",), 1, 16384, 16384, 256, 8)
SHARED_EXECUTION = ExecutionSettings(
    io_timeout=0.3, load_bank_bytes=1 << 20, store_bank_bytes=1 << 20, store_stall=0.0
)
NAMESPACE = "ab" * 16
NAMES = [f"model.layers.{n}.self_attn.attn" for n in range(LAYERS)]
DEADLINE = 30.0


def digest(*parts):
    made = hashlib.blake2b(digest_size=ENTRY)
    for part in parts:
        made.update(part)
    return made


def entry(layer, hidden):
    """What a layer keeps of one token."""
    return digest(bytes([layer]), hidden).digest()


def embed(token):
    return token.to_bytes(4, "little")


@functools.cache
def reference(prompt, count):
    """The tokens that a model without any cache gives."""
    tokens = list(prompt)
    attention = [digest() for _ in range(LAYERS)]
    for position in range(len(prompt) + count - 1):
        hidden = embed(tokens[position])
        for layer in range(LAYERS):
            attention[layer].update(entry(layer, hidden))
            hidden = digest(hidden, attention[layer].digest()).digest()
        if position >= len(prompt) - 1:
            tokens.append(int.from_bytes(hidden[:4], "little") % VOCABULARY)
    return tokens[len(prompt) :]


def prompt(seed, length, *, shared=()):
    source = random.Random(seed)
    return (*shared, *(source.randrange(VOCABULARY) for _ in range(length - len(shared))))


class PagedModel:
    """A worker: keeps block tables, computes on pages and calls the connector as vLLM's runners do."""

    def __init__(self, connector, blocks):
        self.connector = connector
        self.pages = [bytearray(blocks * BLOCK * ENTRY) for _ in range(LAYERS)]
        self.requests = {}
        self.calls_hooks = True
        self.quiet_steps = 0
        # All that was told so far.
        self.stats = None

    def execute(self, output):
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        self._take_up(output)
        connector = self.connector
        connector.handle_preemptions(output.kv_connector_metadata)
        connector.bind_connector_metadata(output.kv_connector_metadata)
        self.quiet_steps += connector._quiet
        if output.has_sync_kv_loads:
            connector.start_load_kv(None)
        sampled = self._forward(output) if output.num_scheduled_tokens else {}
        if not output.has_sync_kv_loads:
            connector.start_load_kv(None)
        connector.wait_for_save()
        transfers = connector.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_sending=transfers.finished_sending,
            finished_recving=transfers.finished_recving,
            failed_recving=transfers.failed_recving,
            invalid_block_ids=connector.get_block_ids_with_load_errors(),
            kv_connector_stats=self._take_stats(),
            kv_connector_worker_meta=connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={each: n for n, each in enumerate(ids)})
        result.sampled_token_ids = [sampled.get(each, []) for each in ids]
        result.kv_connector_output = told
        return result

    def _take_stats(self):
        stats = self.connector.get_kv_connector_stats()
        if stats is not None:
            told = copy.deepcopy(stats)
            self.stats = told if self.stats is None else self.stats.aggregate(told)
        return stats

    def _take_up(self, output):
        for gone in output.finished_req_ids:
            self.requests.pop(gone, None)
        for new in output.scheduled_new_reqs:
            self.requests[new.req_id] = SimpleNamespace(
                tokens=list(new.prefill_token_ids or new.prompt_token_ids),
                prompt=len(new.prompt_token_ids),
                blocks=list(new.block_ids[0]),
                computed=new.num_computed_tokens,
            )
        cached = output.scheduled_cached_reqs
        for request_id, blocks, computed, made in zip(
            cached.req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
            cached.num_output_tokens,
            strict=True,
        ):
            state = self.requests[request_id]
            state.computed = computed
            # vLLM has dropped what came out of a failed load.
            del state.tokens[state.prompt + made :]
            if request_id in cached.resumed_req_ids:
                state.blocks = list(blocks[0])
                if request_id in cached.all_token_ids:
                    state.tokens = list(cached.all_token_ids[request_id])
            elif blocks is not None:
                state.blocks += blocks[0]

    def _forward(self, output):
        batch = [(self.requests[each], count) for each, count in output.num_scheduled_tokens.items()]
        hidden = [[embed(t) for t in state.tokens[state.computed : state.computed + n]] for state, n in batch]
        for layer, name in enumerate(NAMES):
            # As in vLLM: a layer's new entries are written before it waits for the loaded ones.
            for (state, _), vectors in zip(batch, hidden, strict=True):
                for position, vector in enumerate(vectors, state.computed):
                    self._page(layer, state, position)[:] = entry(layer, vector)
            if self.calls_hooks:
                self.connector.wait_for_layer_load(name)
            for index, ((state, _), vectors) in enumerate(zip(batch, hidden, strict=True)):
                attention = digest()
                for position in range(state.computed):
                    attention.update(self._page(layer, state, position))
                hidden[index] = []
                for position, vector in enumerate(vectors, state.computed):
                    attention.update(self._page(layer, state, position))
                    hidden[index].append(digest(vector, attention.digest()).digest())
            if self.calls_hooks:
                self.connector.save_kv_layer(name, None, None)
        sampled = {}
        for request_id, vectors in zip(output.num_scheduled_tokens, hidden, strict=True):
            state = self.requests[request_id]
            if state.computed + len(vectors) >= len(state.tokens):
                token = int.from_bytes(vectors[-1][:4], "little") % VOCABULARY
                state.tokens.append(token)
                sampled[request_id] = [token]
        return sampled

    def _page(self, layer, state, position):
        start = (state.blocks[position // BLOCK] * BLOCK + position % BLOCK) * ENTRY
        return memoryview(self.pages[layer])[start : start + ENTRY]


class Server:
    """A scheduler, workers and their connectors; ``late`` steps are under way when the next is planned."""

    def __init__(self, folder, *, wrap, blocks, asynchronous, settings, policy, ranks, shared, options):
        import torch
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = EngineArgs(
            model=str(folder),
            dtype="float32",
            block_size=32,
            max_model_len=1024,
            max_num_seqs=8,
            enforce_eager=True,
            skip_tokenizer_init=True,
            kv_transfer_config={
                "kv_connector": "TuttiConnectorV1",
                "kv_connector_module_path": "tutti_vllm.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": policy,
                "kv_connector_extra_config": {"capacity_bytes": 1 << 30} | settings,
            },
            **options,
        ).create_engine_config()
        # The CPU platform plans no step ahead; what is tested here is what vLLM does on others.
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.block_size = BLOCK
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=2, dtype=torch.float32)
        cache = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(NAMES, spec)]
        )
        self.config, self.blocks = config, blocks
        self.late = 1 if asynchronous else 0
        self.backends = [
            wrap(MemoryBackend(num_layers=LAYERS, segment_bytes=GEOMETRY.segment_bytes, num_chunks=256))
            for _ in range(ranks)
        ]
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            config, cache, StructuredOutputManager(config), block_size=BLOCK, hash_block_size=BLOCK
        )
        self.shared = shared
        self.workers = []
        for rank in range(ranks):
            worker = PagedModel(self._worker_connector(config, cache, rank), blocks)
            movers = [PlainMover(GEOMETRY, [memoryview(pages) for pages in worker.pages]) for _ in range(2)]
            worker.connector._worker.register(movers[0], NAMES)
            if shared is not None:
                worker.connector._worker.shared.register(movers[1], SHARED_EXECUTION)
            self.workers.append(worker)
        self._join = KVOutputAggregator(ranks).aggregate
        self.answers = {}
        self.finished = {}
        self._flying = deque()
        self._wanted = {}

    def _worker_connector(self, config, cache, rank):
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        from tutti_vllm.connector_v1 import TuttiConnectorV1
        from tutti_vllm.worker_side.worker import WorkerSide

        connector = TuttiConnectorV1(config, KVConnectorRole.WORKER, cache)
        shared = None if self.shared is None else self.shared.worker(rank)
        connector._worker = WorkerSide(
            rank, lambda layout: Impatient(GEOMETRY, backend=self.backends[rank], rank=rank), shared=shared
        )
        return connector

    @property
    def backend(self):
        return self.backends[0]

    @property
    def worker(self):
        return self.workers[0]

    @property
    def connector(self):
        return self.scheduler.connector

    def add(self, name, tokens, count=4, **sampling):
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        hasher = get_hash_fn_by_name("sha256")
        init_none_hash(hasher)
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **sampling)
        params.update_from_generation_config({}, eos_token_id=None)
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=params,
            pooling_params=None,
            block_hasher=get_request_block_hasher(BLOCK, hasher),
        )
        self._wanted[name] = tuple(tokens), count
        self.answers[name] = []
        self.scheduler.add_request(request)
        return request

    def step(self):
        """Plan and run a step; take up the oldest result once more than ``late`` are under way."""
        output = self.scheduler.schedule()
        results = [worker.execute(output) for worker in self.workers]
        self._flying.append((output, self._join(results)))
        if len(self._flying) > self.late:
            self._take_oldest()
        return output

    def _take_oldest(self):
        output, result = self._flying.popleft()
        for batch in self.scheduler.update_from_output(output, result).values():
            for one in batch.outputs:
                self.answers[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    self.finished[one.request_id] = str(one.finish_reason)

    def read_batches_held(self):
        return self.backend.waiting if self.backend.closed == "read" else 0

    def abort(self, name):
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        self.finished.setdefault(name, "abort")

    def until(self, done):
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, "it never comes"
            self.step()

    def run(self, *, settled=False):
        """Go on as vLLM's loop does until nothing is left; then nothing may be held.

        ``settled``: each step begins with every transfer of the ones before at its end.
        """
        deadline = time.monotonic() + DEADLINE
        while self.scheduler.has_requests() or self._flying:
            assert time.monotonic() < deadline, "the server never becomes idle"
            if self.scheduler.has_requests():
                self.step()
            else:
                self._take_oldest()
            if settled:
                self.settle()
        self.check_idle()

    def settle(self):
        """Wait until every transfer has ended; it is told with the next step."""
        deadline = time.monotonic() + DEADLINE
        for side in (worker.connector._worker for worker in self.workers):
            for engine in (side._engine, side.shared and side.shared._engine):
                assert engine is None or engine.wait_idle(deadline)

    def check_idle(self):
        # What a drive ends after its deadline is told with the next step, whenever that comes.
        deadline = time.monotonic() + DEADLINE
        while self._held():
            assert time.monotonic() < deadline, self._held()
            self.step()
        while self._flying:
            self._take_oldest()
        # One block is vLLM's placeholder.
        assert self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.blocks - 1

    def _held(self):
        sides = [self.connector, *(worker.connector for worker in self.workers)]
        return [held for held in (side.in_use() for side in sides) if held]

    def answer(self, name, tokens, count=4, **sampling):
        self.add(name, tokens, count, **sampling)
        self.run()
        self.check(name)
        return self.answers[name]

    def check(self, *names):
        """Each request that ended by itself gave the tokens of a model without a cache."""
        for name in names:
            tokens, count = self._wanted[name]
            assert self.answers[name] == reference(tokens, count), name

    def forget_memory(self, *, disk=False, running=False):
        assert self.scheduler.reset_prefix_cache(reset_running_requests=running, reset_connector=disk)

    def counters(self):
        return self.connector.counters()

    def count(self, name):
        return self.counters().get(name, 0)


class Shared:
    """One server's clients of a pool, and what goes wrong with all of them."""

    def __init__(self, pool, *, ranks=1, write="always", lookup_seconds=DEADLINE, hit_seconds=1e9, **rules):
        from tutti_engine.testing.shared_stores import Faults

        self.pool, self.faults, self.ranks = pool, Faults(), ranks
        self.write, self.hit_seconds = write, hit_seconds
        self.rules = {"lookup_seconds": lookup_seconds, "lookup_asks": 1 << 40, "break_even": False} | rules

    def client(self):
        from tutti_engine.testing.shared_stores import MemorySharedStore

        return MemorySharedStore(self.pool, self.faults, threads=2)

    def scheduler(self):
        from tutti_engine.shared.lookup import LookupSettings
        from tutti_engine.shared.tier import SharedTier, SharedTierSettings
        from tutti_vllm.scheduler_side.shared_side import SharedRules, SharedSide

        lookup = LookupSettings(hit_seconds=self.hit_seconds, miss_seconds=0.01, call_seconds=0.5)
        settings = SharedTierSettings(write=self.write, lookup=lookup)
        tier = SharedTier(GEOMETRY, self.client(), NAMESPACE, ranks=self.ranks, settings=settings)
        for breaker in (tier.load_breaker, tier.store_breaker, tier.lookup.breaker):
            # They open and close in the time of a test.
            breaker._first_cooldown = breaker._cooldown = 0.02
            breaker._max_cooldown = 0.1
        return SharedSide(tier, SharedRules(**self.rules))

    def worker(self, rank):
        from tutti_engine.shared.backend import SharedBackend
        from tutti_engine.shared.object_header import ObjectNames
        from tutti_vllm.worker_side.shared_worker import SharedWorker

        def open_engine(layout, namespace):
            backend = SharedBackend(self.client(), ObjectNames(namespace), rank, GEOMETRY)
            return TuttiEngine(GEOMETRY, backend=backend, rank=rank)

        return SharedWorker(rank, open_engine)


class Gate(DelayedBackend):
    """Holds back what ``closed`` names, reads or writes, until it is opened; fails reads with ``error``."""

    def __init__(self, inner):
        super().__init__(inner)
        self.closed = ""
        self.error = 0

    def open(self):
        self.closed = ""
        self.release()

    def _start(self, direction, batch):
        if direction == self.closed:
            return super()._start(direction, batch)
        return self._start_inner(direction, batch)

    def _start_inner(self, direction, batch):
        if direction == "read" and self.error:
            return FixedHandle(None, (), [self.error] * len(batch))
        return super()._start_inner(direction, batch)


@pytest.fixture
def words():
    """Return prompts: of a seed and a length, and perhaps what they begin with."""
    return prompt


class Impatient(TuttiEngine):
    """Gives a drive two seconds."""

    def bind(self, mover, settings=None):
        super().bind(
            mover, ExecutionSettings(io_timeout=2.0, load_bank_bytes=1 << 20, store_bank_bytes=1 << 20)
        )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

    small = TinyModel(
        layers=1, hidden=64, heads=2, kv_heads=1, intermediate=64, vocabulary=128, max_tokens=1024
    )
    return make_tiny_model(tmp_path_factory.mktemp("model"), small)


@pytest.fixture
def server(model_folder, monkeypatch):
    """Make servers whose store lies in memory, behind whatever ``wrap`` puts before it."""
    from tutti_vllm.connector_v1 import TuttiConnectorV1
    from tutti_vllm.scheduler_side.scheduler import SchedulerSide
    from tutti_vllm.start import opening

    made = []
    ranks_of = []
    shared_of = []

    def open_scheduler(vllm_config, kv_cache_config):
        settings = opening.read_settings(vllm_config)
        engine = TuttiEngine(GEOMETRY, chunk_ids=range(256), ranks=ranks_of[-1])
        rules = opening._load_rules(settings, vllm_config, GEOMETRY)
        side = SchedulerSide(engine, LAYOUT, hash_tokens=BLOCK, rules=rules)
        if shared_of[-1] is not None:
            side.use_shared(shared_of[-1].scheduler())
        return side

    monkeypatch.setattr(opening, "open_scheduler", open_scheduler)
    monkeypatch.setattr(TuttiConnectorV1, "_open_worker", staticmethod(lambda *what: None))

    def make(
        *,
        wrap=Gate,
        blocks=64,
        asynchronous=False,
        policy="recompute",
        ranks=1,
        settings=None,
        shared=None,
        **options,
    ):
        settings = {"break_even": False} | (settings or {})
        ranks_of.append(ranks)
        shared_of.append(shared)
        one = Server(
            model_folder,
            wrap=wrap,
            blocks=blocks,
            asynchronous=asynchronous,
            settings=settings,
            policy=policy,
            ranks=ranks,
            shared=shared,
            options=options,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        if one.shared is not None:
            one.shared.faults.running.set()
        for worker in one.workers:
            worker.connector.shutdown()
        if one.shared is not None:
            one.connector._scheduler.shared.tier.close()
        one.scheduler.shutdown()


@pytest.fixture
def sharing():
    """Make what lets a server share a pool of objects."""
    return Shared


@pytest.fixture
def pool():
    from tutti_engine.testing.shared_stores import MemoryPool

    return MemoryPool()
