# SPDX-License-Identifier: Apache-2.0
"""What a double does to the operations it is given."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = [
    "FaultPlan",
    "FaultRule",
    "accepting",
    "delayed",
    "failing",
    "hanging",
    "paced",
    "reordering",
    "short",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """Which operations something happens to, and what.

    Conditions, of which those that are ``None`` match everything:
        direction: ``"read"``, ``"write"`` or ``"flush"``.
        target: part of the target's path or name. The shards of a striped target are targets.
        item: number in its batch, where only accepted requests are counted. All parts of a striped request
            have the number of the request.
        skip, every, times: of the operations that match, so many are left alone first; then it happens to
            one of ``every``, ``times`` times in all (``None``: always).

    What happens; several together are possible:
        delay: seconds that the device takes longer, or (low, high) to draw them from.
        hang: the device answers only after :meth:`Faults.release`.
        error: errno that the device answers; nothing is moved.
        short: bytes, a multiple of 4096, after which the transfer ends; the item's status is then EIO.
    """

    direction: str | None = None
    target: str | None = None
    item: int | None = None
    skip: int = 0
    every: int = 1
    times: int | None = None
    delay: float | tuple[float, float] = 0.0
    hang: bool = False
    error: int = 0
    short: int | None = None

    def native(self) -> dict[str, Any]:
        """Return what the compiled module takes."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What a device does from now on; the first rule that matches an operation acts on it.

    ``reorder``: operations are gathered in groups of so many (or what comes in 2 ms) and begun in random
    order. ``accept``: requests of a batch for which there is room, further ones are EAGAIN (``None``: all).
    ``bandwidth``: bytes per second of a device that serves one operation after the other (0: no limit), one
    device per root, or ``per_target``; ``write_cost`` is how much longer a written byte takes than a read
    one. ``seed`` makes what is random repeat itself.

    Numbers are checked when the plan is put to use: ``ValueError`` names the key, the value and the rule.
    """

    rules: tuple[FaultRule, ...] = ()
    reorder: int = 0
    accept: int | None = None
    bandwidth: float = 0.0
    per_target: bool = False
    write_cost: float = 1.0
    seed: int = 0

    def __add__(self, other: FaultPlan) -> FaultPlan:
        """Both at once: the rules of the left one come first, other settings of the right one win."""
        if not isinstance(other, FaultPlan):
            return NotImplemented
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {
            field.name: getattr(other, field.name)
            for field in fields(other)
            if getattr(other, field.name) != field.default
        }
        return FaultPlan(**{**own, **changed, "rules": self.rules + other.rules})

    def native(self) -> dict[str, Any]:
        """Return what the compiled module takes."""
        plan = {field.name: getattr(self, field.name) for field in fields(self)}
        plan["rules"] = [rule.native() for rule in self.rules]
        if self.accept is None:
            del plan["accept"]
        return plan


def delayed(delay: float | tuple[float, float], **which: Any) -> FaultPlan:
    """Let the device take ``delay`` seconds longer, or a random time from (low, high).

    ``which`` are the conditions of :class:`FaultRule`, here and below.
    """
    return FaultPlan(rules=(FaultRule(delay=delay, **which),))


def reordering(group: int = 16, *, seed: int = 0) -> FaultPlan:
    """Begin operations in random order, in groups of ``group``."""
    return FaultPlan(reorder=group, seed=seed)


def failing(error: int, **which: Any) -> FaultPlan:
    """Fail with an errno and move nothing; ``item=i`` fails item i of every batch, ``times=1`` once."""
    return FaultPlan(rules=(FaultRule(error=error, **which),))


def accepting(count: int) -> FaultPlan:
    """Have room for the first ``count`` requests of each batch; further ones are EAGAIN."""
    return FaultPlan(accept=count)


def short(length: int, **which: Any) -> FaultPlan:
    """End transfers after ``length`` bytes, a multiple of 4096. The item then is EIO with so many bytes."""
    return FaultPlan(rules=(FaultRule(short=length, **which),))


def hanging(**which: Any) -> FaultPlan:
    """Answer nothing until :meth:`Faults.release`; an item with a deadline is then late."""
    return FaultPlan(rules=(FaultRule(hang=True, **which),))


def paced(bandwidth: float, *, per_target: bool = False, write_cost: float = 1.0) -> FaultPlan:
    """Be a device of ``bandwidth`` bytes per second that serves one operation after the other."""
    return FaultPlan(bandwidth=bandwidth, per_target=per_target, write_cost=write_cost)
