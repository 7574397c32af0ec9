# SPDX-License-Identifier: Apache-2.0
"""A small planner: stores and evicts without end in the order that the engine promises. Run as a program."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import time
from pathlib import Path

from tutti_engine.backend import SegmentBatch
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.catalogue import writer as catalogue_writer
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.testing.window import HostWindow

GEOMETRY = Geometry(num_layers=4, block_tokens=16, blocks_per_chunk=1, page_bytes=64 * 1024)
CHUNKS = 12
NAMESPACE = Namespace({"test": "crash"})


def open_store(root: Path) -> LocalStore:
    capacity = bytes_needed(CHUNKS, geometry=GEOMETRY, ranks=1, roots=1)
    return LocalStore.open([root], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=capacity)


def batch(slot: int) -> SegmentBatch:
    layers = range(GEOMETRY.num_layers)
    return SegmentBatch([slot] * len(layers), layers, layers)


def checksums(window: HostWindow) -> bytes:
    digests = (hashlib.blake2b(window.slot(layer), digest_size=8) for layer in range(GEOMETRY.num_layers))
    return b"".join(each.digest() for each in digests)


def read_checksums(backend: LocalStoreBackend, window: HostWindow, slot: int) -> bytes:
    handle = backend.read_segments(batch(slot))
    assert handle.wait(time.monotonic() + 30)
    assert set(handle.status()) == {0}, handle.status()
    return checksums(window)


def store_for_ever(root: Path) -> None:
    """Evict, wait for it, write, commit; a line on standard output before every step."""
    # More commits in less time: more moments at which a kill can hurt.
    catalogue_writer.COMMIT_INTERVAL = 0.002
    store = open_store(root)
    backend = LocalStoreBackend(store.layout, 0)
    window = HostWindow(GEOMETRY.num_layers, GEOMETRY.segment_bytes)
    backend.bind_staging(window)
    generation = 0
    while True:
        slot = random.randrange(store.layout.num_chunks)
        removed = threading.Event()
        print("remove", flush=True)
        store.catalogue.remove([slot], lambda slots, removed=removed: removed.set())
        assert removed.wait(30)
        window.memory[:] = random.randbytes(1 << 16) * (window.nbytes >> 16)
        print("write", flush=True)
        handle = backend.write_segments(batch(slot))
        assert handle.wait(time.monotonic() + 30)
        assert set(handle.status()) == {0}
        print("put", flush=True)
        generation += 1
        key = os.urandom(16)
        store.catalogue.put(Record(key, slot, generation, (checksums(window),), int(time.time())))
        store.catalogue.add("stored", 1)


if __name__ == "__main__":
    store_for_ever(Path(sys.argv[1]))
