# SPDX-License-Identifier: Apache-2.0
"""Random lives of two servers that share a store which is killed, cut, filled and damaged at random.

They run above vLLM's real schedulers: no token may be wrong, and nothing may be held at the end.

A longer run: ``TUTTI_SHARED_SCHEDULES=1000 pytest packages/tutti-vllm/tests/adapter/test_shared_random.py``.
"""

import errno
import os
import random
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

SCHEDULES = int(os.environ.get("TUTTI_SHARED_SCHEDULES", "16"))
STEPS = 60


class Cluster:
    """Two servers, one pool, one random schedule."""

    def __init__(self, make, sharing, pool, words, seed):
        self.random = source = random.Random(seed)
        self.make, self.sharing, self.pool, self.words = make, sharing, pool, words
        self.ranks = source.choice((1, 1, 2))
        self.servers = [self._server(), self._server()]
        self.aborted = set()
        self.count = 0
        self.loaded = 0

    def act(self):
        """Do one random thing."""
        kind = self.random.random()
        at = self.random.randrange(2)
        one = self.servers[at]
        alive = [name for name in one.answers if name not in one.finished]
        if kind < 0.25 and len(alive) < 8:
            self._add(one)
        elif kind < 0.29 and alive:
            name = self.random.choice(alive)
            self.aborted.add(name)
            one.abort(name)
        elif kind < 0.39:
            self._break(one.shared.faults)
        elif kind < 0.49:
            self._heal(one)
        elif kind < 0.53:
            self._spoil()
        elif kind < 0.57:
            one.backend.error = self.random.choice((0, 0, errno.EIO, errno.ENOENT))
        elif kind < 0.61:
            # Nothing of it is left but what it has written to the pool.
            self._check_ended(one)
            one.shared.faults.running.set()
            self.loaded += one.count("shared_load_chunks")
            self.servers[at] = self._server()
        elif kind < 0.66:
            one.scheduler.reset_prefix_cache()
        elif kind < 0.68:
            self._forget_drive(one)
        else:
            for _ in range(self.random.choice((1, 3, 10))):
                one.step()

    def end(self):
        """Heal everything, let all requests end and look at the answers."""
        self.pool.capacity_bytes = 1 << 62
        for one in self.servers:
            one.backend.error = 0
            self._heal(one)
            one.run()
            for name in one.answers:
                if name not in self.aborted:
                    assert one.finished[name] == "length"
            self._check_ended(one)
            self.loaded += one.count("shared_load_chunks")

    def _server(self):
        source = self.random
        shared = self.sharing(
            self.pool,
            ranks=self.ranks,
            write=source.choice(("always", "always", "second_sight", "never")),
            lookup_seconds=source.choice((0.0, 0.005, 0.05)),
            hit_seconds=source.choice((0.01, 1e9)),
            load_seconds=source.choice((0.05, 5.0)),
        )
        return self.make(
            shared=shared,
            ranks=self.ranks,
            asynchronous=source.random() < 0.5,
            blocks=source.choice((30, 64)),
            enable_prefix_caching=source.random() < 0.7,
            max_num_batched_tokens=source.choice((64, 128, 512)),
            settings={"load_mode": source.choice(("async", "layerwise", "auto"))},
        )

    def _add(self, one):
        stem = self.words(self.random.randrange(2), self.random.choice((31, 64, 70, 128)))
        length = len(stem) + self.random.choice((1, 20, 64))
        name = f"{self.count}"
        self.count += 1
        one.add(
            name, self.words(self.random.randrange(3), length, shared=stem), self.random.choice((1, 4, 40))
        )

    def _break(self, faults):
        what = self.random.randrange(5)
        if what == 0:
            faults.error = self.random.choice((errno.EIO, errno.ETIMEDOUT, errno.ENOENT))
        elif what == 1:
            faults.cut_until = time.monotonic() + 0.05
        elif what == 2:
            faults.delay = 0.01
        elif what == 3:
            faults.lose = True
        else:
            faults.running.clear()

    def _heal(self, one):
        faults = one.shared.faults
        faults.error, faults.cut_until, faults.delay, faults.lose = 0, 0.0, 0.0, False
        faults.running.set()

    def _spoil(self):
        """Change what the pool holds: evict, damage, swap, write another version's, fill it."""
        with self.pool.lock:
            names = list(self.pool.objects)
            if not names:
                return
            name, other = self.random.choice(names), self.random.choice(names)
            data = self.pool.objects[name]
            what = self.random.randrange(5)
            if what == 0:
                del self.pool.objects[name]
            elif what == 1:
                at = self.random.choice((0, 8, 30, 120, 4096, 4100))
                self.pool.objects[name] = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
            elif what == 2:
                self.pool.objects[name] = self.pool.objects[other]
            elif what == 3:
                self.pool.objects[name] = data[: len(data) // 2]
            else:
                self.pool.capacity_bytes = self.random.choice((0, 1 << 62))

    def _forget_drive(self, one):
        if not one.connector.in_use():
            one.connector._scheduler.engine.reset()

    def _check_ended(self, one):
        for name in one.finished:
            if name not in self.aborted:
                one.check(name)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_random_life_of_two_servers(server, sharing, pool, words, seed):
    cluster = Cluster(server, sharing, pool, words, seed)
    for _ in range(STEPS):
        cluster.act()
    cluster.end()


def test_random_lives_do_load_from_the_store(server, sharing, pool, words):
    loaded = 0
    for seed in range(1000, 1006):
        cluster = Cluster(server, sharing, pool, words, seed)
        for _ in range(STEPS):
            cluster.act()
        cluster.end()
        loaded += cluster.loaded
    assert loaded > 0, "or none of this proves anything"
