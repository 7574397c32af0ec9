# SPDX-License-Identifier: Apache-2.0
"""What a user may write about a store that several servers share; off without ``shared_store``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tutti_engine.errors import BackendError
from tutti_engine.shared.kinds import check_shared_options
from tutti_engine.shared.tier import WRITE_POLICIES

__all__ = ["SharedSettings"]


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings of the shared store.

    Attributes:
        shared_store: a store behind the local one, which several servers share: ``{"kind": "mooncake", ...}``
            with the kind's own options, or a kind ``package.module:Class``.
        shared_write: which chunks go there: ``second_sight`` (those that two prompts had), ``hot`` (four),
            ``always`` (all), ``never``.
        shared_weights: a name for the model's weights, the same on all servers that have the same ones. It
            stands for the model's path and the files' dates there, which may differ from server to server.
        shared_lookup_ms: how long a request waits, in milliseconds, to hear what the store holds.
        shared_lookup_steps: for how many of the server's steps it waits for that at most.
        shared_hit_seconds: how long a chunk that was seen in the store counts as there.
        shared_miss_seconds: how long a chunk that was missing counts as missing.
        shared_timeout_seconds: a transfer that takes longer has failed.
        shared_max_loading_bytes: bytes a rank that may be on their way from the store at a time; a request
            that finds more goes without.
        shared_max_writing_bytes: bytes a rank that may be on their way to the store at a time; more is not
            written.
    """

    shared_store: Mapping[str, Any] | None = None
    shared_write: str = "second_sight"
    shared_weights: str | None = None
    shared_lookup_ms: int = 50
    shared_lookup_steps: int = 1000
    shared_hit_seconds: int = 30
    shared_miss_seconds: int = 2
    shared_timeout_seconds: int = 5
    shared_max_loading_bytes: int = 1 << 30
    shared_max_writing_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.shared_write not in WRITE_POLICIES:
            known = ", ".join(WRITE_POLICIES)
            raise ValueError(f"shared_write must be one of {known}, not {self.shared_write!r}")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int":
                least = 0 if each.name in ("shared_lookup_ms", "shared_lookup_steps") else 1
                if isinstance(value, bool) or not isinstance(value, int):
                    kind = type(value).__name__
                    raise ValueError(f"{each.name} must be a whole number, not {value!r} ({kind})")
                if value < least:
                    raise ValueError(f"{each.name} must be at least {least}, not {value}")
        weights = self.shared_weights
        if weights is not None and (not isinstance(weights, str) or not weights):
            raise ValueError(f"shared_weights must be a name, not {weights!r}")
        self._check_store()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(each.name for each in fields(cls))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SharedSettings:
        """Take what is given of them. Raises ValueError that begins with the key."""
        return cls(**{name: given[name] for name in cls.names() if name in given})

    @property
    def kind(self) -> str:
        """The kind of the store."""
        return "" if self.shared_store is None else str(self.shared_store["kind"])

    @property
    def options(self) -> dict[str, Any]:
        """The kind's own options."""
        return {name: value for name, value in (self.shared_store or {}).items() if name != "kind"}

    def _check_store(self) -> None:
        store = self.shared_store
        if store is None:
            return
        if not isinstance(store, Mapping) or not isinstance(store.get("kind"), str):
            example = json.dumps({"kind": "mooncake"})
            raise ValueError(f"shared_store must be an object with a kind, such as {example}, not {store!r}")
        try:
            check_shared_options(self.kind, self.options)
        except (BackendError, TypeError) as error:
            raise ValueError(f"shared_store: {error}") from None
