# SPDX-License-Identifier: Apache-2.0
"""Random lives of many requests above vLLM's real schedulers: right tokens, and nothing held at the end.

A longer run: ``TUTTI_SCHEDULES=2000 pytest packages/tutti-vllm/tests/adapter/test_random_schedules.py``.
"""

import errno
import os
import random

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

SCHEDULES = int(os.environ.get("TUTTI_SCHEDULES", "24"))
STEPS = 40


class Life:
    """One random schedule."""

    def __init__(self, server, words, seed):
        self.random = source = random.Random(seed)
        self.words = words
        self.overlapped = source.random() < 0.5
        # Without planning ahead as well: pipeline stages hold batches of different requests. There, as
        # everywhere where steps overlap, nothing is loaded layer by layer.
        late = 1 if self.overlapped else source.choice((0, 0, 1, 2))
        modes = ("async", "layerwise", "auto") if self.overlapped or not late else ("async",)
        self.server = server(
            asynchronous=self.overlapped,
            blocks=source.choice((22, 40, 64)),
            ranks=source.choice((1, 1, 2)),
            enable_prefix_caching=source.random() < 0.7,
            max_num_batched_tokens=source.choice((64, 128, 512)),
            settings={
                "load_mode": source.choice(modes),
                "max_loading_bytes": source.choice((1, 1 << 17, 1 << 30)),
            },
        )
        self.server.scheduler.use_v2_model_runner = source.random() < 0.3
        self.server.late = late
        self.alive = []
        self.aborted = set()
        self.count = 0

    def act(self):
        """Do one random thing."""
        kind = self.random.random()
        backend = self.random.choice(self.server.backends)
        if kind < 0.25 and len(self.alive) < 12:
            self._add()
        elif kind < 0.30 and self.alive:
            name = self.random.choice(self.alive)
            self.aborted.add(name)
            self.server.abort(name)
        elif kind < 0.35:
            backend.closed = self.random.choice(("read", "write"))
        elif kind < 0.45:
            backend.open()
        elif kind < 0.48:
            backend.error = self.random.choice((errno.EIO, errno.EAGAIN, errno.ENOENT))
        elif kind < 0.55:
            backend.error = 0
        elif kind < 0.57 and not self._anything_parked():
            self.server.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        elif kind < 0.60:
            self.server.scheduler.reset_prefix_cache()
        else:
            self.server.step()
        self.alive = [name for name in self.alive if name not in self.server.finished]

    def end(self):
        for backend in self.server.backends:
            backend.error = 0
            backend.open()
        self.server.run()
        for name in self.server.answers:
            if name not in self.aborted:
                assert self.server.finished[name] == "length"
                self.server.check(name)

    def _add(self):
        # Few prompts that share much: hits of every kind.
        stem = self.words(self.random.randrange(2), self.random.choice((31, 64, 70, 128)))
        length = len(stem) + self.random.choice((1, 20, 64))
        name = f"{self.count}"
        self.count += 1
        self.alive.append(name)
        tail = self.words(self.random.randrange(3), length, shared=stem)
        self.server.add(name, tail, self.random.choice((1, 4, 40)))

    def _anything_parked(self):
        # vLLM refuses to reset while blocks wait for a load or for steps that are under way.
        waiting = self.server.scheduler.kv_holding_waiting
        return self.server.late or bool(waiting) or self.server.connector.in_use().get("load_plans", 0) > 0


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_random_life(server, words, seed):
    life = Life(server, words, seed)
    for _ in range(STEPS):
        life.act()
    life.end()
