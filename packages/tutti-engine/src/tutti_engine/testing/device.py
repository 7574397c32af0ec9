# SPDX-License-Identifier: Apache-2.0
"""A device without a device: queues of work that run late, each in order, and a mover for pages there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from tutti_engine.backend import StagingWindow
from tutti_engine.execution.lane import Lane
from tutti_engine.geometry import Geometry
from tutti_engine.mover import Mover
from tutti_engine.movers.plain import PlainMover

__all__ = ["DeferringMover", "SimulatedDeviceMover", "Stream"]

Work = Callable[[], None]
Word = TypeVar("Word")


class Stream:
    """A queue of work on the device. ``dawdle`` is called before each piece and may take its time."""

    def __init__(self, name: str, dawdle: Work = lambda: None) -> None:
        self._lane = Lane(name)
        self._dawdle = dawdle

    def put(self, work: Work) -> None:
        """Ask for work; returns at once."""

        def task() -> None:
            self._dawdle()
            work()

        self._lane.put(task)

    def record(self) -> threading.Event:
        """Return an event at the queue's end."""
        event = threading.Event()
        self._lane.put(event.set)
        return event

    def wait_for(self, event: threading.Event) -> None:
        """Have what is asked for from now on wait for an event."""

        def task() -> None:
            event.wait()

        self._lane.put(task)

    def synchronize(self) -> None:
        """Wait for all that was asked for."""
        self.record().wait()


class _Copy(Generic[Word]):
    def __init__(self) -> None:
        self.words: Sequence[Word] = ()
        self.error: Exception | None = None
        self.done = threading.Event()

    def run(self, work: Callable[[], Sequence[Word]]) -> None:
        try:
            self.words = work()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    def wait(self) -> Sequence[Word]:
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.words


class SimulatedDeviceMover(PlainMover):
    """A ``BackgroundMover`` for pages that only queues touch: the server's own is ``server``."""

    def __init__(self, geometry: Geometry, layers: Sequence[memoryview], dawdle: Work = lambda: None) -> None:
        super().__init__(geometry, layers)
        self.server = Stream("simulated-server", dawdle)
        self._loads = Stream("simulated-loads", dawdle)
        self._stores = Stream("simulated-stores", dawdle)
        self.bound = True

    def mark(self) -> threading.Event:
        """See ``BackgroundMover``."""
        return self.server.record()

    def hold(self, copies: Iterable[Any]) -> None:
        """See ``BackgroundMover``."""
        for copy in copies:
            self.server.wait_for(copy.done)

    def unbind(self) -> None:
        """See ``BackgroundMover``."""
        self.bound = False

    def start_scatter(
        self,
        mark: threading.Event,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> _Copy[bool]:
        """See ``BackgroundMover``."""
        copy = _Copy[bool]()
        self._loads.wait_for(mark)
        self._loads.put(lambda: copy.run(lambda: self.scatter(layers, slots, block_ids, checksums)))
        return copy

    def start_gather(
        self,
        mark: threading.Event,
        layers: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        slots: Sequence[int],
    ) -> _Copy[int]:
        """See ``BackgroundMover``."""
        copy = _Copy[int]()
        self._stores.wait_for(mark)
        self._stores.put(lambda: copy.run(lambda: self.gather(layers, block_ids, slots)))
        return copy


class DeferringMover:
    """Makes a ``BackgroundMover`` of one for pages that the server writes at once: stores are copied late.

    Where the engine is not told in time that a block is wanted back, wrong bytes are stored.
    """

    def __init__(self, inner: Mover, dawdle: Work) -> None:
        self._inner = inner
        self._stores = Stream("simulated-stores", dawdle)
        self.checksum_name = inner.checksum_name
        self.can_skip_verification = getattr(inner, "can_skip_verification", False)

    def bind(self, window: StagingWindow) -> None:
        """See ``Mover``."""
        self._inner.bind(window)

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """See ``Mover``."""
        return self._inner.gather(layers, block_ids, slots)

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """See ``Mover``."""
        return self._inner.scatter(layers, slots, block_ids, checksums)

    def mark(self) -> None:
        """See ``BackgroundMover``: there is no queue."""

    def hold(self, copies: Iterable[Any]) -> None:
        """See ``BackgroundMover``: the server itself waits."""
        for copy in copies:
            copy.done.wait()

    def unbind(self) -> None:
        """See ``BackgroundMover``."""

    def start_scatter(
        self,
        mark: None,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> _Copy[bool]:
        """See ``BackgroundMover``."""
        copy = _Copy[bool]()
        copy.run(lambda: self._inner.scatter(layers, slots, block_ids, checksums))
        return copy

    def start_gather(
        self, mark: None, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> _Copy[int]:
        """See ``BackgroundMover``."""
        copy = _Copy[int]()
        self._stores.put(lambda: copy.run(lambda: self._inner.gather(layers, block_ids, slots)))
        return copy
