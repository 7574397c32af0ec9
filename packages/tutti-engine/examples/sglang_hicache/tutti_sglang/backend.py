# SPDX-License-Identifier: Apache-2.0
"""A storage backend of SGLang's HiCache, found through its dynamic interface.

Every rank that stores has a store of its own, in files below ``root``. A page is one chunk, its key a digest
of the name that SGLang gives it. Pages travel between the files and HiCache's own host pool through staging
memory of the engine, and what does not verify is not written there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from tutti_engine import ChunkKey, ExecutionSettings, TuttiEngine, TuttiError
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.namespace import Namespace
from tutti_engine.planning.upkeep import Upkeep
from tutti_engine.store.follow import ViewFollower
from tutti_engine.store.local_store import LocalStore
from tutti_engine.store.view import LocalStoreView
from tutti_sglang.host_pool import PageParts, PoolMover, describe_pool, geometry_of

__all__ = ["TuttiHiCache"]

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUIRED = ("capacity_bytes", "root")
KNOWN = {
    *REQUIRED,
    *("backend_name", "module_path", "class_name", "interface_v1"),
    *("identity", "replicas", "staging_bytes"),
}
SGLANGS = {"file_storage_path"}
SCRATCH_PAGES = 8
STAGING_BYTES = 128 << 20
SECONDS = 60.0
LOOK_AGAIN_SECONDS = 2.0


class TuttiHiCache(HiCacheStorage):
    """See the README beside this package for its settings.

    Raises ValueError for a setting that is missing, unknown or out of range, and TuttiError for a store that
    cannot be opened: SGLang then does not start.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        check_settings(extra, storage_config)
        self._config = storage_config
        self._extra = extra
        self._zero_copy = bool(extra.get("interface_v1", 0))
        self._turn = threading.Lock()
        self._scratch_turn = threading.Lock()
        self._results: dict[int, Any] = {}
        self._given_up: set[int] = set()
        self._engine: TuttiEngine | None = None
        self._closers: list[Any] = []
        self._looked_at = float("-inf")

    # What SGLang calls.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool and open the store for its pages."""
        super().register_mem_pool_host(mem_pool_host)
        self._parts = describe_pool(mem_pool_host) if self._zero_copy else whole_pages(mem_pool_host)
        self._page_tokens = int(mem_pool_host.page_size)
        self._geometry = geometry_of(self._parts, self._page_tokens)
        self._mover = PoolMover(self._parts, SCRATCH_PAGES, with_pool=self._zero_copy)
        if self._is_writer:
            self._open_store()
        else:
            self._look_for_store()

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """Return how many pages from the first on are stored."""
        return self._safely(lambda: self._count(names(keys)), 0)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Read pages into the host pool; tell of each whether it is there now."""
        wanted, pages = names(keys), self._pages(keys, host_indices)
        return self._safely(lambda: self._read(wanted, pages), [False] * len(keys))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of the host pool; tell of each whether it is durable now."""
        before = names(getattr(extra_info, "prefix_keys", None) or ())
        given, pages = names(keys), self._pages(keys, host_indices)
        return self._safely(lambda: self._write(given, pages, before), [False] * len(keys))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Return a page's bytes, in ``target_location`` where a tensor is given."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Return the bytes of each page that is stored, None for the others."""
        targets = [None] * len(keys) if target_locations is None else list(target_locations)
        if len(targets) != len(keys):
            raise ValueError(f"{len(keys)} keys and {len(targets)} places for them")
        found: list[torch.Tensor | None] = []
        with self._scratch_turn:
            for piece in pieces(len(keys)):
                wanted, pages = names([keys[at] for at in piece]), self._scratch_pages(len(piece))
                there = self._safely(partial(self._read, wanted, pages), [False] * len(piece))
                for number, at in enumerate(piece):
                    found.append(self._take(number, targets[at]) if there[number] else None)
        return found

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a page given as a tensor; return whether it is durable."""
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store pages given as tensors; return whether all of them are durable."""
        tensors = list(values if values is not None else target_locations or ())
        if len(tensors) != len(keys):
            raise ValueError(f"{len(keys)} keys and {len(tensors)} values")
        done = True
        with self._scratch_turn:
            for piece in pieces(len(keys)):
                for number, at in enumerate(piece):
                    self._put(number, tensors[at])
                given, pages = names([keys[at] for at in piece]), self._scratch_pages(len(piece))
                stored = self._safely(partial(self._write, given, pages, []), [False] * len(piece))
                done = done and all(stored)
        return done

    def clear(self) -> None:
        """Forget every page, durably. What is stored afterwards is kept until this server ends."""
        if self._engine is not None and self._is_writer:
            self._engine.reset()

    def close(self) -> None:
        """Finish what is under way and give the store back."""
        engine, self._engine = self._engine, None
        for close in reversed(self._closers):
            close()
        self._closers.clear()
        if engine is not None:
            log.info("Tutti: closed; %s", engine.planner.counters.snapshot())

    # The store.

    @property
    def _is_writer(self) -> bool:
        return bool(self._config.is_storage_writer)

    def _namespace(self) -> Namespace:
        config, pool = self._config, self.mem_pool_host
        return Namespace(
            {
                "server": "sglang-hicache",
                "model": config.model_name,
                "identity": self._extra.get("identity"),
                "dtype": str(pool.dtype),
                "layout": str(pool.layout),
                "page_tokens": self._page_tokens,
                "parts": list(self._parts.sizes),
                "pages_in_place": self._zero_copy,
                "replicated": bool(config.is_mla_model),
                "tp_size": config.tp_size,
                "pp_size": config.pp_size,
                "cp_size": config.attn_cp_size,
                "checksum": self._mover.checksum_name,
            }
        )

    def _replica(self) -> tuple[int, int]:
        """Return which of the stores is this rank's, and how many share the capacity."""
        config = self._config
        heads, of_heads = (0, 1) if config.is_mla_model else (config.tp_rank, config.tp_size)
        number, count = heads, of_heads
        for rank, size in (
            (config.pp_rank, config.pp_size),
            (config.attn_cp_rank, config.attn_cp_size),
            (config.dp_rank, int(self._extra.get("replicas", 1))),
        ):
            number, count = rank * count + number, count * size
        return number, count

    def _roots(self) -> list[str]:
        root = self._extra["root"]
        return [root] if isinstance(root, str) else list(root)

    def _open_store(self) -> None:
        store = LocalStore.open(
            self._roots(),
            self._namespace(),
            self._geometry,
            ranks=1,
            capacity_bytes=self._extra["capacity_bytes"],
            replica=self._replica(),
        )
        self._closers.append(store.close)
        engine = self._start(store)
        self._closers.append(Upkeep(engine.planner).close)
        store.records.clear()
        log.info("Tutti: %d pages are on disk, there is room for %d", *counts(engine))

    def _look_for_store(self) -> None:
        """Open the writer's store for reading, once it is there; only ranks that do not store call this."""
        if self._is_writer or self._engine is not None or time.monotonic() < self._looked_at:
            return
        with self._turn:
            if self._engine is not None:
                return
            self._looked_at = time.monotonic() + LOOK_AGAIN_SECONDS
            try:
                view = LocalStoreView.open(
                    self._roots(), self._namespace(), self._geometry, ranks=1, replica=self._replica()
                )
                with contextlib.ExitStack() as opened:
                    opened.callback(view.close)
                    engine = self._start(view)
                    opened.pop_all()
            except (TuttiError, OSError) as error:
                log.debug("Tutti: nothing to read yet: %s", error)
                return
            self._closers.append(ViewFollower(view, engine.planner).close)
            view.records.clear()

    def _start(self, store: LocalStore | LocalStoreView) -> TuttiEngine:
        is_view = isinstance(store, LocalStoreView)
        engine = TuttiEngine(
            self._geometry,
            chunk_ids=store.chunk_ids,
            records=store.records,
            journal=None if isinstance(store, LocalStoreView) else store.catalogue,
            places=None if isinstance(store, LocalStoreView) else store.places,
            read_only=is_view,
            backend=LocalStoreBackend(store.layout, 0),
        )
        # SGLang stores in a thread of its own, which may wait for staging room as long as I/O may take.
        staging = self._extra.get("staging_bytes", STAGING_BYTES)
        settings = ExecutionSettings(
            load_bank_bytes=staging, store_bank_bytes=staging, store_stall=SECONDS / 2
        )
        engine.bind(self._mover, settings)
        self._closers.append(engine.shutdown)
        self._engine = engine
        return engine

    # Pages.

    def _pages(self, keys: Sequence[str], host_indices: Any) -> list[int]:
        """Return the pool's page of each key. Raises ValueError for indices that are not whole pages."""
        tokens = self._page_tokens
        if not self._zero_copy:
            raise ValueError("set interface_v1 to 1 to have pages read and stored in place")
        if len(host_indices) != len(keys) * tokens:
            raise ValueError(f"{len(keys)} pages of {tokens} tokens, but {len(host_indices)} indices")
        firsts = [int(index) for index in host_indices[::tokens]]
        wrong = [at for at in firsts if at % tokens or not 0 <= at // tokens < self._parts.num_pages]
        if wrong:
            raise ValueError(f"index {wrong[0]} is not where a page of the host pool begins")
        return [at // tokens for at in firsts]

    def _scratch_pages(self, count: int) -> list[int]:
        return list(range(self._mover.first_scratch, self._mover.first_scratch + count))

    def _take(self, number: int, target: Any) -> torch.Tensor:
        source = self._mover.scratch[number]
        if target is None:
            return source.clone().view(self.mem_pool_host.dtype)
        target.view(torch.uint8).view(-1).copy_(source)
        placed: torch.Tensor = target
        return placed

    def _put(self, number: int, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.nbytes != self._mover.scratch.shape[1]:
            size = getattr(value, "nbytes", None)
            raise ValueError(f"a page has {self._mover.scratch.shape[1]} bytes, this value {size}")
        self._mover.scratch[number].copy_(value.contiguous().view(torch.uint8).view(-1))

    def _safely(self, work: Callable[[], T], otherwise: T) -> T:
        """Return what ``work`` does. What is raised in SGLang's threads ends them: a miss does not."""
        try:
            return work()
        except Exception:
            log.exception("Tutti: the storage of HiCache failed; the server goes on.")
            return otherwise

    def _count(self, keys: list[ChunkKey]) -> int:
        self._look_for_store()
        return 0 if self._engine is None else self._engine.planner.lookup_prefix(keys)

    def _blocks(self, page: int) -> tuple[tuple[int, ...], ...]:
        return tuple((page,) for _ in self._geometry.groups)

    def _read(self, keys: list[ChunkKey], pages: list[int]) -> list[bool]:
        self._look_for_store()
        engine = self._engine
        if engine is None:
            return [False] * len(keys)
        there = [at for at, key in enumerate(keys) if engine.planner.lookup_prefix([key])]
        if not there:
            return [False] * len(keys)
        plan = engine.plan_load([(keys[at], self._blocks(pages[at])) for at in there])
        result = self._result(engine, plan.plan_id, engine.load(plan).wait)
        if result is None:
            # SGLang uses these pages for something else next: nothing may write to them any more.
            engine.give_up_load(plan)
            return [False] * len(keys)
        loaded = {at for number, at in enumerate(there) if number not in set(result.failed)}
        return [at in loaded for at in range(len(keys))]

    def _write(self, keys: list[ChunkKey], pages: list[int], before: list[ChunkKey]) -> list[bool]:
        engine = self._engine
        if engine is None or not self._is_writer:
            return [False] * len(keys)
        planner = engine.planner
        wanted = [(key, self._blocks(page)) for key, page in zip(keys, pages)]
        # Told as a prompt, a page goes before the one that it goes on from. Not where that one is not stored:
        # the engine keeps no page without the one before it, SGLang does.
        whole = planner.lookup_prefix(before) == len(before)
        plan = engine.plan_store(wanted, [[*before, *keys]] if before and whole else [])
        if plan is not None:
            engine.store(plan)
            self._result(engine, plan.plan_id, engine.wait_idle)
        return [planner.lookup_prefix([key]) == 1 for key in keys]

    def _result(self, engine: TuttiEngine, plan_id: int, wait: Callable[[float], bool]) -> Any:
        """Wait for a plan's end; None if it takes too long. Several threads of SGLang wait at a time.

        ``wait`` waits until a deadline. A load has its own: there may be a store under way all the time.
        """
        deadline = time.monotonic() + SECONDS
        while True:
            ended = wait(min(deadline, time.monotonic() + 1.0))
            with self._turn:
                for result in engine.settle():
                    if hasattr(result, "errno") and result.plan_id not in self._given_up:
                        self._results[result.plan_id] = result
                if plan_id in self._results:
                    return self._results.pop(plan_id)
                if time.monotonic() >= deadline:
                    self._given_up.add(plan_id)
                    return None
            if ended:  # its report comes a moment later
                time.sleep(0.001)


def names(keys: Sequence[str]) -> list[ChunkKey]:
    """Return the engine's key of each of SGLang's: what comes from outside is only ever a digest."""
    return [ChunkKey(hashlib.blake2b(key.encode(), digest_size=32).digest()) for key in keys]


def pieces(count: int) -> Iterator[range]:
    """Return ranges of at most as many as there are scratch pages."""
    for start in range(0, count, SCRATCH_PAGES):
        yield range(start, min(count, start + SCRATCH_PAGES))


def counts(engine: TuttiEngine) -> tuple[int, int]:
    """Return how many pages are stored, and how many fit."""
    return engine.planner.resident_chunks, engine.planner.capacity_chunks


def whole_pages(pool: Any) -> PageParts:
    """Return a page as one part, for servers that hand over tensors."""
    size = int(pool.get_dummy_flat_data_page().nbytes)
    return PageParts(int(pool.size) // int(pool.page_size), (size,), (0,), (size,))


def check_settings(extra: Mapping[str, Any], config: Any) -> None:
    """Raise ValueError that names the setting and the rule."""
    for name in REQUIRED:
        if name not in extra:
            raise ValueError(f"hicache-storage-backend-extra-config needs {name!r}")
    unknown = sorted(set(extra) - KNOWN - SGLANGS)
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(KNOWN))}")
    for name in ("capacity_bytes", "staging_bytes"):
        size = extra.get(name, STAGING_BYTES)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a positive whole number, not {size!r}")
    replicas = extra.get("replicas", 1)
    if not isinstance(replicas, int) or not config.dp_rank < replicas:
        raise ValueError(f"replicas is {replicas!r}, but this is replica {config.dp_rank}: set the dp size")
    if config.dcp_size > 1:
        raise ValueError(f"dcp_size is {config.dcp_size}: pages that ranks share by tokens are not supported")
    if config.should_split_heads:
        raise ValueError("pages that are split by heads are not supported: leave tp_lcm_size unset")
