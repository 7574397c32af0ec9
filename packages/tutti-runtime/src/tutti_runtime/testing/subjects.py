# SPDX-License-Identifier: Apache-2.0
"""Every kind of runtime and target that there is, made alike, so that one suite can be run over them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.host_memory import HostMemory
from tutti_runtime.runtime import Runtime
from tutti_runtime.testing.doubles import FaultRuntime, make_fault_runtime
from tutti_runtime.testing.plans import FaultPlan

__all__ = ["KINDS", "MadeTarget", "Subject", "TargetMaker", "faults_of", "make_subject"]

PAGE = 4096


@dataclass(frozen=True, slots=True)
class MadeTarget:
    """A target that exists and is not open. ``contents`` reads its bytes without the runtime.

    It is ``None`` where nobody but the runtime can see them.
    """

    uri: str
    size: int
    contents: Callable[[], NDArray[np.uint8]] | None = None


class TargetMaker(Protocol):
    """Makes target number ``number`` of ``size`` bytes, all zeros, that a runtime can open."""

    def __call__(self, folder: Path, number: int, size: int) -> MadeTarget:
        """Make it below ``folder``."""


@dataclass
class Subject:
    """A runtime to be tested, with targets and memory for it.

    ``whole_items``: an item is one operation of the device, so that one that fails has moved what its
    ``bytes`` say and nothing else. That is not so where an item has parts on several devices.
    """

    name: str
    runtime: Runtime
    folder: Path
    make_target: TargetMaker
    whole_items: bool = True
    _made: int = 0
    _kept: list[HostMemory] = field(default_factory=list)

    def target(self, size: int) -> MadeTarget:
        """Make another target of ``size`` bytes."""
        self._made += 1
        return self.make_target(self.folder, self._made, size)

    def open(self, size: int, *, writable: bool = True) -> int:
        """Make another target and open it."""
        return self.runtime.open(self.target(size).uri, writable=writable)

    def memory(self, size: int) -> tuple[HostMemory, int]:
        """Registered memory that stays mapped as long as the subject is there."""
        memory = HostMemory(size)
        self._kept.append(memory)
        return memory, self.runtime.register_memory(memory.address, size)


def _memory_target(folder: Path, number: int, size: int) -> MadeTarget:
    del folder
    return MadeTarget(f"mem://target-{number}?size={size}", size)


def _new_file(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def _bytes_of(path: Path) -> NDArray[np.uint8]:
    return np.fromfile(path, dtype=np.uint8)


def _file_target(folder: Path, number: int, size: int) -> MadeTarget:
    path = _new_file(folder / f"target-{number}", size)
    return MadeTarget(path.absolute().as_uri(), size, lambda: _bytes_of(path))


def _raw_target(folder: Path, number: int, size: int) -> MadeTarget:
    """A slice in the middle of an image file."""
    path = _new_file(folder / f"target-{number}.img", size + 3 * PAGE)
    uri = f"raw://{quote(str(path.absolute()))}?offset={2 * PAGE}&size={size}"
    return MadeTarget(uri, size, lambda: _bytes_of(path)[2 * PAGE : 2 * PAGE + size])


def _striped_target(folder: Path, number: int, size: int) -> MadeTarget:
    """Over two to four folders, in units and with a rotation that depend on ``number``."""
    count, unit = 2 + number % 3, PAGE << number % 4
    rotation = number % count
    units = -(-size // unit)
    roots = [folder.absolute() / f"root-{i}" for i in range(count)]
    paths = [_new_file(root / f"target-{number}", -(-units // count) * unit) for root in roots]
    uri = (
        f"striped://target-{number}?roots={','.join(quote(str(root)) for root in roots)}"
        f"&unit={unit}&rot={rotation}&size={size}"
    )

    def contents() -> NDArray[np.uint8]:
        shards = np.stack([_bytes_of(path).reshape(-1, unit) for path in paths], axis=1)
        return np.roll(shards, -rotation, axis=1).reshape(-1)[:size]

    return MadeTarget(uri, size, contents)


_DRIVES: dict[str, Any] = {
    "controllers": [
        {"transport": "soft", "name": f"disk{i}", "memory_bytes": 8 << 30, "mdts_bytes": 128 << 10}
        for i in range(2)
    ],
    "queue_entries": 32,
}
_BY_DEVICE = {**_DRIVES, "device_executor": "cpu", "execution": "device"}
_PLACE = 64 << 20  # of a namespace, for each target; its blocks take memory only once they are written


def _nvme_target(folder: Path, number: int, size: int) -> MadeTarget:
    del folder
    return MadeTarget(f"nvme://disk{number % 2}/1?offset={number * _PLACE}&size={size}", size)


def _nvme_striped_target(folder: Path, number: int, size: int) -> MadeTarget:
    """Over both controllers, in units and with a rotation that depend on ``number``."""
    del folder
    unit = PAGE << number % 4
    roots = "nvme://disk0/1,nvme://disk1/1"
    offset = number * _PLACE
    uri = f"striped://t?roots={roots}&unit={unit}&rot={number % 2}&offset={offset}&size={size}"
    return MadeTarget(uri, size)


KINDS: dict[str, tuple[str, dict[str, Any], TargetMaker]] = {
    "memory": ("memory", {}, _memory_target),
    "posix": ("posix", {"direct": "off"}, _file_target),
    "uring": ("uring", {"direct": "off"}, _file_target),
    "auto": ("auto", {"direct": "off"}, _file_target),
    "posix-direct": ("posix", {"direct": "on"}, _file_target),
    "uring-direct": ("uring", {"direct": "on"}, _file_target),
    "posix-striped": ("posix", {"direct": "off"}, _striped_target),
    "uring-striped": ("uring", {"direct": "off"}, _striped_target),
    "uring-striped-direct": ("uring", {"direct": "on"}, _striped_target),
    "posix-raw": ("posix", {"direct": "off"}, _raw_target),
    "uring-raw": ("uring", {"direct": "off"}, _raw_target),
    "nvme": ("nvme", _DRIVES, _nvme_target),
    "nvme-striped": ("nvme", _DRIVES, _nvme_striped_target),
    "nvme-device": ("nvme", _BY_DEVICE, _nvme_target),
    "nvme-device-striped": ("nvme", _BY_DEVICE, _nvme_striped_target),
}
"""Name -> data path, its settings, and what makes targets."""


def make_subject(kind: str, folder: Path, plan: FaultPlan | None = None, **settings: Any) -> Subject:
    """Make a subject of one of :data:`KINDS` whose runtime is a :class:`FaultRuntime`.

    ``settings`` go to the runtime and win over the kind's. Raises ``KeyError`` for an unknown kind, and what
    the runtime raises: ``OSError`` where this machine does not have io_uring.
    """
    base, fixed, make_target = KINDS[kind]
    runtime = make_fault_runtime(base, plan, **{**fixed, **settings})
    return Subject(kind, runtime, folder, make_target, whole_items="striped" not in kind)


def faults_of(subject: Subject) -> FaultRuntime:
    """The runtime of a subject that :func:`make_subject` made."""
    if not isinstance(subject.runtime, FaultRuntime):
        raise TypeError(f"the runtime of {subject.name} is no FaultRuntime")
    return subject.runtime
