# SPDX-License-Identifier: Apache-2.0
from tutti_engine.planning.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[Breaker, Clock]:
    clock = Clock()
    return Breaker(threshold=3, cooldown=5.0, max_cooldown=8.0, clock=clock), clock


def test_opens_after_failures_in_a_row_only():
    breaker, _ = make()
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allow()
    assert [breaker.failed() for _ in range(4)] == [False, False, True, False]
    assert not breaker.allow()


def test_probes_once_a_cooldown_and_closes_on_success():
    breaker, clock = make()
    for _ in range(3):
        breaker.failed()
    clock.now = 5.0
    assert breaker.would_allow()
    assert breaker.allow()
    assert not breaker.allow(), "only one probe at a time"
    breaker.failed()
    clock.now = 5.0 + 7.9
    assert not breaker.allow(), "the cooldown doubles up to its limit"
    clock.now = 5.0 + 8.0
    assert breaker.allow()
    breaker.succeeded()
    assert breaker.allow() and not breaker.is_open
