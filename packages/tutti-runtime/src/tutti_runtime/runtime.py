# SPDX-License-Identifier: Apache-2.0
"""The runtime object."""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutti_runtime import _core, config, ordering
from tutti_runtime.errors import (
    ExtentError,
    ForkedRuntimeError,
    InvalidUriError,
    RuntimeClosedError,
    TuttiRuntimeError,
)
from tutti_runtime.extents import ExtentMap, resolve_extents
from tutti_runtime.requests import REQUEST_DTYPE, Completion, OpenResult, SubmitResult
from tutti_runtime.write_policy import WritePolicy

__all__ = ["Runtime"]

_log = logging.getLogger("tutti_runtime")

if REQUEST_DTYPE.itemsize != _core.REQUEST_ITEMSIZE:  # a binary of another version beside these files
    raise ImportError(
        f"tutti_runtime's compiled module has {_core.REQUEST_ITEMSIZE}-byte requests, its Python files "
        f"{REQUEST_DTYPE.itemsize}-byte ones; reinstall tutti-runtime"
    )


class Runtime:
    """Moves bytes between registered memory and opened targets, in batches, without blocking the caller.

    Made by the functions of :mod:`tutti_runtime.factories`. All methods may
    be called from any thread. After :meth:`shutdown` every method raises :class:`RuntimeClosedError`; in a
    child of ``fork`` every method raises :class:`ForkedRuntimeError`.
    """

    def __init__(self, core: _core.StorageRuntime) -> None:
        self._core = core
        self._fallback_said = False
        self._notices_said = 0
        self._say_notices()

    # Targets

    def open(self, uri: str, *, writable: bool = True, root: str | Sequence[str] | None = None) -> int:
        """Open a target and return its handle.

        ``file:///absolute/path`` on a file runtime: the file must exist, be regular and not a symbolic
        link. It is never created or resized, and its size is taken at this moment. Every ``%XX`` is decoded
        once.
        ``striped://name?roots=/a,/b&unit=BYTES&rot=N&size=BYTES`` on a file or striped runtime: one file
        ``<root>/<name>`` per root, with the rules of ``file://`` for each. Unit k of the target is on root
        (k + rot) mod roots, there as unit k div roots. ``size`` is by default everything before the first
        byte that no shard holds. All keys are optional where the runtime has roots.
        ``raw:///absolute/path?offset=BYTES&size=BYTES`` on a file runtime: a block device or an image file,
        or a slice of it. A device that is opened writable is held exclusively: one that is mounted is
        refused (EBUSY).
        ``nvme://name/nsid?offset=BYTES&size=BYTES`` on an NVMe runtime: a slice of a namespace. There
        ``file:///absolute/path`` is a file on a block device of one of its controllers, by proven extents
        (:func:`resolve_extents`), and roots of ``striped://`` can be ``nvme://name/nsid``, where each shard
        begins at the key ``offset``.
        ``mem://name?size=BYTES`` on a memory runtime: zeros at first; lives as long as the runtime.

        ``root``: a tag (1 to 255 bytes of UTF-8) for the drive that the target is on; for a striped target a
        list with one for each of its roots. Reads go before writes, writes are paced and a slow drive holds
        up no other per drive. Without a tag, files with one ``st_dev`` count as one drive, which is wrong
        where several file systems are on one drive (give them one tag) or one file system on several. Tags
        belong to this runtime, at most 1024 of them.

        Raises ``InvalidUriError`` for a URI outside this grammar, ``OSError`` (errno and filename set) for
        what the system refuses, ``TypeError`` and ``ValueError`` for a bad ``root``.
        """
        _check_uri(uri)
        target = self._core.open(uri, bool(writable), _root_tags(root))
        self._say_fallback()
        return target

    def open_batch(
        self, uris: Iterable[str], *, writable: bool = True, root: str | Sequence[str] | None = None
    ) -> list[OpenResult]:
        """Open many targets, on several threads where opening is slow; one that fails takes no other with it.

        The results are in the order of ``uris``; ``root`` is that of :meth:`open`, for every one. Raises only
        ``RuntimeClosedError`` and ``ForkedRuntimeError``, and for a ``root`` that is neither a tag nor a list
        of tags ``TypeError`` or ``ValueError``.
        """
        tags = _root_tags(root)
        items = list(uris)
        results: list[OpenResult | None] = [None] * len(items)
        places = []
        for i, uri in enumerate(items):
            try:
                _check_uri(uri)
                places.append(i)
            except (TypeError, ValueError) as error:
                results[i] = OpenResult(None, error)
        opened = self._core.open_batch([items[i] for i in places], bool(writable), tags)
        for i, outcome in zip(places, opened, strict=True):
            results[i] = OpenResult(*outcome)
        self._say_fallback()
        return [result for result in results if result is not None]

    def query(self, target: int) -> dict[str, Any]:
        """What an open target is.

        Keys: ``uri`` as it was opened; ``kind`` (``"file"``, ``"device"``, ``"memory"``, ``"nvme"``
        or ``"striped"``); ``path``; ``size`` and ``offset`` in bytes, the latter being where a slice
        begins in its file;
        ``writable``; ``direct``: whether O_DIRECT is in use now; ``root``: ``st_dev`` of a file, the
        number of a device; ``root_tag``: the drive as :meth:`open` was told, or ``None``; ``inode``. A
        striped target also has ``unit`` in bytes, ``rotation`` and
        ``shards``, a list of such dicts in the order of the roots. Raises ``InvalidHandleError``.
        """
        return self._core.query(target)

    def resolve_extents(self, target: int, *, sync: bool = True) -> list[ExtentMap]:
        """Prove where a ``file`` or ``striped`` target's bytes lie on their block devices: one map per file.

        As :func:`tutti_runtime.resolve_extents`, and an ``ExtentError`` with the reason ``"changed"`` when
        the path no longer names the file that was opened.
        """
        facts = self.query(target)
        maps = []
        for file in facts.get("shards", [facts]):
            if file["kind"] != "file":
                raise ValueError(f"target={target}: a {file['kind']} target has no extents; only files have")
            found = resolve_extents(file["path"], sync=sync)
            if (found.signature.device, found.signature.inode) != (file["root"], file["inode"]):
                error = ExtentError(f"changed: {file['path']} is another file than the one that was opened")
                error.reason, error.path = "changed", file["path"]
                raise error
            maps.append(found)
        return maps

    def close(self, target: int) -> None:
        """Close a target. Raises ``BusyError`` while its I/O is in flight, and then it stays open."""
        self._core.close(target)

    def close_batch(self, targets: Sequence[int]) -> list[Exception | None]:
        """Close many targets; per item ``None`` or the error that :meth:`close` would have raised."""
        results: list[Exception | None] = []
        for target in targets:
            try:
                self.close(target)
                results.append(None)
            except (RuntimeClosedError, ForkedRuntimeError):
                raise
            except (TuttiRuntimeError, OSError, ValueError, TypeError) as error:
                results.append(error)
        return results

    # Memory

    def register_memory(
        self,
        address: int,
        size: int,
        *,
        kind: str = "host",
        device: int | None = None,
        io_granularity: int = 0,
    ) -> int:
        """Make ``size`` bytes at ``address`` usable in requests and return a handle.

        ``address`` is a multiple of 64 KiB, ``size`` of 4 KiB. The memory stays the caller's and must stay
        mapped until :meth:`unregister_memory`. ``kind``:

        - ``"host"``: memory of this process.
        - ``"pinned_host"``: the same, pinned by CUDA for every device until it is unregistered, so that
          copies run asynchronously and streams can wait on words in it. Memory that CUDA has pinned already
          is taken as it is. ``device`` (default 0) is a CUDA device whose primary context is kept meanwhile.
        - ``"device"``: memory of a CUDA device (``device``; by default CUDA says which), on the ``cufile``
          data path only.

        ``io_granularity`` (bytes, multiple of 4 KiB that divides ``size``, or 0) is the usual request length;
        the data paths of today make no use of it. Raises ``ValueError`` for what breaks a rule, and
        ``OSError`` where CUDA is asked for and is missing (ENOENT, ENODEV) or refuses.
        """
        config.check_choice("kind", kind, config.MEMORY_KINDS)
        for name, value in (("address", address), ("size", size), ("io_granularity", io_granularity)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
                raise ValueError(f"{name}={value!r} must be an int from 0 to 2**64 - 1")
        if io_granularity and (io_granularity % 4096 or size % io_granularity):
            raise ValueError(
                f"io_granularity={io_granularity} must be a multiple of 4096 that divides size={size}"
            )
        if device is not None:
            config.check_device(device)
        memory = self._core.register_memory(address, size, kind, -1 if device is None else device)
        self._say_notices()
        return memory

    def unregister_memory(self, memory: int) -> None:
        """Forget registered memory. Raises ``BusyError`` while I/O on it is in flight."""
        self._core.unregister_memory(memory)

    # I/O

    def submit(
        self,
        requests: NDArray[np.void],
        *,
        timeout: float | NDArray[np.float64] | None = None,
        after: object = None,
        gate: object = None,
        stream: object = None,
        execution: str = "host",
    ) -> SubmitResult:
        """Start a batch: a one-dimensional array of :data:`REQUEST_DTYPE`.

        Each request is accepted or rejected on its own; the order in which accepted ones run is not
        defined, so a batch must not write one range twice or read a range that it writes.

        ``timeout``: seconds from now, or an array with seconds for each request (infinity: none), after which
        an unfinished item's result is ETIMEDOUT. What no device had begun then never happens; what a device
        holds is *late*: see :class:`Completion`.
        ``after``: a :class:`WordDependency` that must come true before the batch touches its memory.
        ``gate``: a :class:`Gate` that is opened once all results are there: by success, failure, deadline,
        :meth:`cancel` or the end of :meth:`shutdown`'s patience; at once when nothing was accepted.
        ``stream``: a CUDA stream (a number, or an object with ``cuda_stream``) in whose order the batch runs,
        behind what is on it and before what comes, where ``caps()["stream_ordered"]``. It cannot be taken
        back and is not paced; give no ``after``. That the stream has passed it means *finished*, not
        *succeeded*: the results say that. A flush is rejected (ENOTSUP).
        ``execution``: "host", or "device" where the runtime was made with a device that submits (see
        ``device_executor`` of :func:`make_nvme_runtime`; ``ValueError`` elsewhere). Nothing else differs:
        what is accepted, statuses, deadlines. Flushes, and what the device does not get through, are the
        host's; a device that fails is given up for good, which ``caps()["stepped_down"]`` tells.

        Raises ``TypeError`` for another dtype, ``ValueError`` for another shape or a bad option, and
        ``InvalidHandleError`` for a word in memory that is not registered. Nothing was started then, and a
        gate stays closed.
        """
        if not isinstance(requests, np.ndarray) or requests.dtype != REQUEST_DTYPE:
            found = requests.dtype if isinstance(requests, np.ndarray) else type(requests).__name__
            raise TypeError(f"requests must be a NumPy array of tutti_runtime.REQUEST_DTYPE, not {found}")
        if requests.ndim != 1:
            raise ValueError(f"requests must have one dimension, not shape {requests.shape}")
        if execution not in ("host", "device"):
            raise ValueError(f"execution={execution!r} must be 'host' or 'device'")
        on_device = execution == "device"
        if not (requests.flags.c_contiguous and requests.flags.aligned):
            requests = np.require(requests, requirements=["C", "A"])
        if timeout is None and after is None and gate is None and stream is None and not on_device:
            return SubmitResult(*self._core.submit(requests))
        return SubmitResult(
            *self._core.submit(
                requests,
                ordering.native_timeout(timeout, len(requests)),
                ordering.native_after(after),
                ordering.native_gate(gate),
                None if stream is None else ordering.native_stream(stream),
                on_device,
            )
        )

    def poll(self, handle: int) -> bool:
        """Whether the batch has finished; :meth:`wait` then returns at once."""
        return self._core.poll(handle)

    def wait(self, handle: int, timeout: float | None = None) -> Completion:
        """Wait for a batch, at most ``timeout`` seconds (``None``: for ever), and consume its handle.

        Raises ``TimeoutError`` when time is up, the handle then stays good, and ``InvalidHandleError`` for
        a handle that was consumed or abandoned or is not this runtime's. Signals are handled while waiting.
        """
        outcome = self._core.wait(handle, timeout)
        if outcome is None:
            raise TimeoutError(
                errno.ETIMEDOUT, f"batch {handle} has not finished within {timeout} s; wait again"
            )
        if not self._fallback_said:
            self._say_fallback()
        if self._core.notice_count != self._notices_said:
            self._say_notices()
        return Completion(*outcome)

    def cancel(self, handle: int) -> None:
        """End a batch's items that no device has begun with ECANCELED; the others run on.

        The handle stays good: wait for it. Raises ``InvalidHandleError``.
        """
        self._core.cancel(handle)

    def abandon(self, handle: int) -> None:
        """Give up a batch's result. Its I/O goes on: memory and targets stay busy until it has finished."""
        self._core.abandon(handle)

    def completion_fd(self) -> int:
        """An eventfd that is readable after batches have finished; reading it gives how many since the last
        read.

        It belongs to the runtime: do not close it. ``shutdown`` closes it.
        """
        return self._core.completion_fd()

    # Facts

    def caps(self) -> dict[str, Any]:
        """What this runtime can do, in bytes and counts, which data path it uses and why."""
        return self._core.caps()

    def stats(self) -> dict[str, int]:
        """Counters since creation; none ever decreases. ``submitted == accepted + rejected``."""
        return self._core.stats()

    # Settings that may change

    def set_write_policy(self, policy: WritePolicy) -> None:
        """Share drives between reads and writes in another way from now on, what waits included.

        A memory runtime has nothing to share and ignores it. Raises ``TypeError``.
        """
        if not isinstance(policy, WritePolicy):
            raise TypeError(f"policy={policy!r} must be a tutti_runtime.WritePolicy")
        self._core.set_write_policy(policy.native())

    # End

    def shutdown(self, timeout: float = 5.0) -> bool:
        """Refuse new calls, wait at most ``timeout`` seconds for what is in flight, then close everything.

        Returns whether all has ended. ``False``: what no device had begun is canceled and all gates are open,
        but devices still use targets and memory; call again to go on waiting.
        """
        return self._core.shutdown(timeout)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.shutdown():
            _log.warning("I/O was still in flight when the runtime was left; its memory must stay mapped")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.is_owner and not core.stopped:
            warnings.warn(
                "a tutti_runtime.Runtime was not shut down", ResourceWarning, stacklevel=2, source=self
            )

    def _say_notices(self) -> None:
        notices = self._core.notices()[self._notices_said :]
        self._notices_said += len(notices)
        for notice in notices:
            _log.warning("%s", notice)

    def _say_fallback(self) -> None:
        count = 0 if self._fallback_said else self._core.direct_fallbacks
        if count:
            self._fallback_said = True
            _log.warning(
                "O_DIRECT is refused by the file system of %d target(s): buffered I/O is used for them", count
            )


def _root_tags(root: object) -> list[str]:
    """One tag for each drive, or none; how many there must be and how long they may be the core knows."""
    if root is None:
        return []
    items = root if isinstance(root, (list, tuple)) else [root]
    tags = [tag for tag in items if isinstance(tag, str)]
    if len(tags) != len(items):
        raise TypeError(f"root={root!r} must be None, a str or a list of str")
    for tag in tags:
        try:
            tag.encode()
        except UnicodeEncodeError:
            raise ValueError(f"root={root!r} must be valid Unicode") from None
    if not tags:
        raise ValueError("root=[] names no drive; use None")
    return tags


def _check_uri(uri: object) -> None:
    if not isinstance(uri, str):
        raise TypeError(f"uri={uri!r} must be a str")
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise InvalidUriError(
            f"target URI {uri[:200]!r}: it is not valid Unicode; write bytes that are no text as %XX"
        ) from None
