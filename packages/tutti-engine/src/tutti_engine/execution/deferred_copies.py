# SPDX-License-Identifier: Apache-2.0
"""Pages that wait to be copied while the server goes on, until it wants to write to them again."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutti_engine.counters import Counters
from tutti_engine.execution.shares import Share
from tutti_engine.execution.transfer import StoreJob
from tutti_engine.mover import BackgroundMover, PageCopy

__all__ = ["DeferredCopies", "DeferredShare"]


class DeferredShare:
    """A share of a store plan whose pages wait.

    Attributes:
        job: the store.
        share: layers, group and chunks.
        mark: the end of the server's work that fills the pages.
        asked: when the pages were handed over, in ``time.monotonic()`` seconds.
    """

    def __init__(self, job: StoreJob, share: Share, mark: Any) -> None:
        self.job = job
        self.share = share
        self.mark = mark
        self.asked = time.monotonic()
        self.todo = dict.fromkeys(share.positions)
        self.running: dict[int, PageCopy] = {}

    def blocks(self, position: int) -> Sequence[int]:
        """The blocks of a chunk in this share's group."""
        return self.job.plan.transfers[position].block_ids[self.share.group]


class DeferredCopies:
    """What is to be copied, by block.

    A server that has computed a page leaves it alone until the block goes to somebody else, often much later.
    So nothing is copied in its step: pages are copied when there are slots, and what the server takes back
    before is given up.
    """

    def __init__(self, mover: BackgroundMover, counters: Counters) -> None:
        self._mover = mover
        self._counters = counters
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._by_block: dict[int, list[tuple[DeferredShare, int]]] = {}

    def add(self, job: StoreJob, share: Share) -> DeferredShare:
        """Take pages that the server's work up to now fills."""
        deferred = DeferredShare(job, share, self._mover.mark())
        with self._lock:
            for position in share.positions:
                for block in deferred.blocks(position):
                    self._by_block.setdefault(block, []).append((deferred, position))
        return deferred

    def start(
        self, deferred: DeferredShare, most: int, launch: Callable[[list[int]], PageCopy]
    ) -> tuple[list[int], PageCopy | None]:
        """Start to copy the next chunks, ``most`` at most; return which, and their copy.

        ``launch`` starts the copy of chunks given by position. It runs under the lock, so that a block is
        either given up before or waited for. What it raises fails these chunks.
        """
        with self._lock:
            errors = deferred.job.errors
            for position in [position for position in deferred.todo if position in errors]:
                del deferred.todo[position]
                self._forget(deferred, position)
            positions = list(deferred.todo)[:most]
            if not positions:
                return [], None
            for position in positions:
                del deferred.todo[position]
            try:
                copy = launch(positions)
            except BaseException:
                for position in positions:
                    self._forget(deferred, position)
                deferred.job.fail(positions, errno.EIO)
                raise
            deferred.running.update(dict.fromkeys(positions, copy))
            return positions, copy

    def end(self, deferred: DeferredShare, positions: Iterable[int]) -> None:
        """Note that a copy has ended."""
        with self._lock:
            for position in positions:
                deferred.running.pop(position, None)
                self._forget(deferred, position)
            self._ended.notify_all()

    def give_up(self, deferred: DeferredShare) -> list[int]:
        """Leave out what has not been started; return which chunks."""
        with self._lock:
            positions = list(deferred.todo)
            deferred.todo.clear()
            for position in positions:
                self._forget(deferred, position)
            return positions

    def revoke(self, blocks: Iterable[int]) -> None:
        """Take blocks back for the server: it may write to them with whatever it asks the device for next.

        Raises what keeps the device from waiting for copies under way; their chunks fail then.
        """
        with self._lock:
            if not self._by_block:
                return
            copies = self._take_back([block for block in blocks if block in self._by_block])
            if not copies:
                return
            self._counters.add("store_copy_waits")
            try:
                self._mover.hold({id(copy): copy for _, _, copy in copies}.values())
            except BaseException:
                for deferred, position, _ in copies:
                    deferred.job.fail((position,), errno.EIO)
                raise

    def revoke_all(self) -> None:
        """Take everything back, and wait for what is being copied."""
        with self._lock:
            self._take_back(list(self._by_block))
            self._ended.wait_for(lambda: not self._by_block)

    def _take_back(self, blocks: Sequence[int]) -> list[tuple[DeferredShare, int, PageCopy]]:
        """Give up what has not been started; return the chunks that are being copied, and their copies."""
        copies = []
        revoked = 0
        for block in blocks:
            for deferred, position in list(self._by_block.get(block, ())):
                copy = deferred.running.get(position)
                if copy is not None:
                    copies.append((deferred, position, copy))
                elif position in deferred.todo:
                    del deferred.todo[position]
                    self._forget(deferred, position)
                    # Another group's blocks of this chunk may have been taken back before.
                    revoked += position not in deferred.job.errors
                    deferred.job.fail((position,), errno.ECANCELED)
        if revoked:
            self._counters.add("store_revoked_chunks", revoked)
        return copies

    def _forget(self, deferred: DeferredShare, position: int) -> None:
        for block in deferred.blocks(position):
            users = self._by_block.get(block)
            if users is None:
                continue
            users[:] = [user for user in users if user != (deferred, position)]
            if not users:
                del self._by_block[block]
