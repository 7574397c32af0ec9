# SPDX-License-Identifier: Apache-2.0
"""Threads that make calls which poll give way to those that do the work."""

import os
import sys
import threading

import pytest

from tutti_engine.shared.blocking_store import BlockingStore
from tutti_engine.testing.shared_conformance import SharedBench


class Noting(BlockingStore):
    """Notes the priority of the threads that call it."""

    def __init__(self, **options):
        self.seen = []
        super().__init__(**options)

    def put(self, names, pieces):
        self.seen.append(priority())
        return [0] * len(names)

    get = put


def priority():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_threads_of_calls_that_poll_give_way():
    own = priority()
    for niceness in (0, 5):
        store = Noting(threads=1, niceness=niceness)
        bench = SharedBench(store, 2, 4096, 4096)
        assert bench.write(["a"], [0], 1) == bench.read(["a"], [0], 1) == [0]
        store.shutdown()
        assert store.seen == [min(19, own + niceness)] * 2
    assert priority() == own


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_threads_that_may_not_give_way_work_all_the_same(monkeypatch):
    def refused(*_):
        raise PermissionError("a sandbox says no")

    monkeypatch.setattr(os, "setpriority", refused)
    store = Noting(threads=1, niceness=5)
    bench = SharedBench(store, 2, 4096, 4096)
    assert bench.write(["a"], [0], 1) == bench.read(["a"], [0], 1) == [0]
    store.shutdown()
