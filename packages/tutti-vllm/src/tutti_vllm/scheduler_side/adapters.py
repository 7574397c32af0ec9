# SPDX-License-Identifier: Apache-2.0
"""What tells LoRA adapters apart: their content, which vLLM's block hashes know by a name and a path only.

vLLM may have read an adapter at any time since it started, and reads it again when it likes. So an adapter
is known only as long as nothing of it has changed since then: then vLLM computes with what its files hold.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tutti_engine import ChunkKey, StoreResult

__all__ = ["Adapter", "Adapters", "mixed"]

logger = logging.getLogger(__name__)

DIGEST_BYTES = 32
READ_BYTES = 1 << 20

MOST_STORES = 4096
"""Plans whose adapters are kept; a step makes one, and most end within a few."""

Signature: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""Of each file: name, inode, bytes, times of the last changes of content and of anything, in nanoseconds."""


@dataclass(slots=True)
class Adapter:
    """One adapter, by the name and the path that vLLM knows it by.

    Attributes:
        path: where it lies.
        facts: what else of a request decides how it is used.
        signature: what its files were when it was first seen.
        digest: of its content; empty until it is known.
        given_up: whether it is left out for good.
        read: set once its content was read, or could not be.
    """

    path: Path
    facts: bytes
    signature: Signature
    digest: bytes = b""
    given_up: bool = False
    read: threading.Event = field(default_factory=threading.Event)


class Adapters:
    """The adapters that this process has seen.

    Args:
        since: when vLLM may have read the first one, in seconds since 1970; now, by default.
    """

    def __init__(self, since: float | None = None) -> None:
        self._since = int((time.time() if since is None else since) * 1e9)
        self._known: dict[tuple[str, str, bytes], Adapter] = {}
        # Stores of what was computed with adapters, by their plans' ids; the latest ones.
        self._stores: OrderedDict[int, Sequence[Adapter]] = OrderedDict()

    def find(self, lora_request: Any) -> Adapter | None:
        """Return a request's adapter; None while its content is not known, or if it cannot be.

        What is new is read in a thread of its own: some hundred megabytes take a second.
        """
        path, called = (str(getattr(lora_request, name, "")) for name in ("lora_path", "lora_name"))
        facts = repr([getattr(lora_request, name, None) for name in ("base_model_name", "is_3d_lora_weight")])
        key = called, path, facts.encode()
        adapter = self._known.get(key)
        if adapter is None:
            adapter = self._known[key] = self._see(path, facts.encode())
        return adapter if adapter.digest and self.is_unchanged(adapter) else None

    def is_unchanged(self, adapter: Adapter) -> bool:
        """Return whether vLLM computes with what the digest stands for. Once it does not, it never will."""
        if not adapter.given_up and not self._is_as_it_was(adapter):
            adapter.given_up = True
            logger.warning(
                "Tutti: the LoRA adapter in %s has changed since the server started; its requests are not"
                " cached until the next start.",
                adapter.path,
            )
        return not adapter.given_up

    def is_as_keyed(self, adapter: Adapter | None) -> bool:
        """Return whether what a request is computed with is what its keys stand for; None: no adapter."""
        return adapter is None or self.is_unchanged(adapter)

    def note_store(self, plan_id: int, adapters: Sequence[Adapter]) -> None:
        """Take note of the adapters that a plan's chunks were computed with."""
        self._stores[plan_id] = adapters
        while len(self._stores) > MOST_STORES:
            # A report that comes so late is not waited for.
            for each in self._stores.popitem(last=False)[1]:
                each.given_up = True

    def believed(self, result: StoreResult) -> StoreResult:
        """Return a rank's report, as one of nothing durable if an adapter has changed since the request came.

        What was computed before it changed, or with what it is now: nobody can tell.
        """
        adapters = self._stores.get(result.plan_id)
        if adapters is None or all(map(self.is_unchanged, adapters)):
            return result
        return replace(result, checksums=(None,) * len(result.checksums), errno=errno.ENOBUFS)

    def wait(self, timeout: float) -> bool:
        """Wait until all adapters that were seen were read; False if that takes longer."""
        deadline = time.monotonic() + timeout
        return all(each.read.wait(max(0.0, deadline - time.monotonic())) for each in self._known.values())

    def _see(self, path: str, facts: bytes) -> Adapter:
        adapter = Adapter(Path(path).expanduser().absolute(), facts, ())
        try:
            if not path:
                raise FileNotFoundError("it has no path")
            adapter.signature = signature_of(adapter.path)
        except OSError as error:
            # A name of the hub, maybe: vLLM looks it up itself, and tells nobody what it found.
            logger.info(
                "Tutti: requests with a LoRA adapter that is no local folder are not cached: %s", error
            )
            adapter.given_up = True
            adapter.read.set()
            return adapter
        if self.is_unchanged(adapter):
            threading.Thread(target=_read, args=(adapter,), name="tutti-adapter", daemon=True).start()
        else:
            adapter.read.set()
        return adapter

    def _is_as_it_was(self, adapter: Adapter) -> bool:
        try:
            now = signature_of(adapter.path)
        except OSError:
            return False
        return now == adapter.signature and max(changed for *_, changed in now) < self._since


def mixed(digest: bytes, hashes: Sequence[bytes]) -> list[ChunkKey]:
    """Return chunk keys that belong to an adapter's content as well; about a microsecond each."""
    return [ChunkKey(hashlib.blake2b(each, key=digest, digest_size=len(each)).digest()) for each in hashes]


def signature_of(path: Path) -> Signature:
    """Return what changes with an adapter's content. Raises OSError for what is no folder."""
    # Each link on the way may lead elsewhere at any time.
    links = [place for place in (path, *path.parents) if place.is_symlink()]
    found = [(str(place), place.lstat()) for place in links]
    found.append((".", path.stat()))
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        # A snapshot of the hub is a folder of links to its files.
        found += [(entry.name, entry.stat()), (entry.name, entry.stat(follow_symlinks=False))]
    return tuple(
        (name, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns) for name, facts in found
    )


def _read(adapter: Adapter) -> None:
    try:
        digest = hashlib.blake2b(adapter.facts, digest_size=DIGEST_BYTES)
        for entry in sorted(os.scandir(adapter.path), key=lambda entry: entry.name):
            facts = entry.stat()
            if not stat.S_ISREG(facts.st_mode):
                continue
            digest.update(repr((entry.name, facts.st_size)).encode())
            with Path(entry.path).open("rb") as file:
                while data := file.read(READ_BYTES):
                    digest.update(data)
        # Whether it changed meanwhile is asked before it is used.
        adapter.digest = digest.digest()
    except OSError as error:
        logger.warning("Tutti: requests with the LoRA adapter in %s are not cached: %s", adapter.path, error)
        adapter.given_up = True
    finally:
        adapter.read.set()
