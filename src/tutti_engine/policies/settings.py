# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about who is stored, who stays and who goes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tutti_engine.policies.admission import AdmissionPolicy, Always, SecondSight, TinyLfu
from tutti_engine.policies.eviction import EvictionPolicy
from tutti_engine.policies.hit_density import HitDensity
from tutti_engine.policies.lru import Lru
from tutti_engine.policies.s3fifo import S3Fifo

__all__ = ["ADMISSIONS", "DEFAULT_EVICTION", "EVICTIONS", "PolicySettings"]

EVICTIONS: Mapping[str, Callable[[], EvictionPolicy]] = {
    policy.name: policy for policy in (HitDensity, Lru, S3Fifo)
}

DEFAULT_EVICTION = HitDensity.name
"""The one that wins on the traces; see docs/policies.md."""

ADMISSIONS = (Always.name, SecondSight.name, TinyLfu.name)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Policies by name, and limits; None is no limit.

    Attributes:
        eviction: ``hit_density``, ``lru`` or ``s3fifo``.
        admission: ``always``, ``second_sight`` or ``tinylfu``.
        admission_sights: for ``second_sight``, how many prompts must have had a chunk before it is stored.
        ttl_seconds: age since its last use from which a chunk is no hit any more.
        daily_write_bytes: most bytes that are written in 24 hours, over all ranks.
        tenant_quota: largest share of the places that one tenant may hold, above 0, up to 1.

    Raises ValueError that names the setting, the value and the rule.
    """

    eviction: str = DEFAULT_EVICTION
    admission: str = Always.name
    admission_sights: int = 2
    ttl_seconds: int | None = None
    daily_write_bytes: int | None = None
    tenant_quota: float | None = None

    def __post_init__(self) -> None:
        _check_name("eviction", self.eviction, tuple(EVICTIONS))
        _check_name("admission", self.admission, ADMISSIONS)
        _check_whole("admission_sights", self.admission_sights, 2, 15)
        if self.ttl_seconds is not None:
            _check_whole("ttl_seconds", self.ttl_seconds, 1, 2**31)
        if self.daily_write_bytes is not None:
            _check_whole("daily_write_bytes", self.daily_write_bytes, 1, 2**62)
        quota = self.tenant_quota
        if quota is not None and (
            isinstance(quota, bool) or not isinstance(quota, (int, float)) or not 0 < quota <= 1
        ):
            raise ValueError(f"tenant_quota must be a share above 0, at most 1, such as 0.25, not {quota!r}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> PolicySettings:
        """Return the settings of a mapping. Raises ValueError for an unknown name, with the nearest one."""
        for name in values:
            if name not in cls.names():
                near = difflib.get_close_matches(str(name), cls.names(), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(cls.names())}"
                raise ValueError(f"unknown policy setting {name!r}: {hint}")
        return cls(**values)

    def make_eviction(self) -> EvictionPolicy:
        """Return a new policy of eviction."""
        return EVICTIONS[self.eviction]()

    def make_admission(self, num_chunks: int) -> AdmissionPolicy:
        """Return a new policy of admission for a store of so many chunks."""
        if self.admission == SecondSight.name:
            return SecondSight(num_chunks, self.admission_sights)
        return TinyLfu(num_chunks) if self.admission == TinyLfu.name else Always()

    def quota_chunks(self, num_chunks: int) -> int | None:
        """Return how many of so many chunks one tenant may hold: at least one; None for no limit."""
        return None if self.tenant_quota is None else max(1, int(self.tenant_quota * num_chunks))


def _check_name(setting: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{setting} must be one of {', '.join(known)}, not {value!r}{hint}")


def _check_whole(setting: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{setting} must be a whole number, not {value!r} ({type(value).__name__})")
    if not least <= value <= most:
        raise ValueError(f"{setting} must be from {least} to {most}, not {value}")
