# SPDX-License-Identifier: Apache-2.0
"""Bounds and deadlines of the execution side."""

from __future__ import annotations

from dataclasses import dataclass

from tutti_engine.execution.verification import Verification, Verify

__all__ = ["MAX_SECONDS", "ExecutionSettings"]


MAX_SECONDS = 1e6
"""Longest deadline, some days: clocks and locks of the system cannot express any."""


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """How a rank moves segments. Raises ValueError for a number out of its range.

    Attributes:
        load_bank_bytes: staging memory for loads, unless two chunks need more: keeps drives busy while pages
            are copied.
        store_bank_bytes: staging memory for stores: takes what one step computes, so that the step need not
            wait for the drives.
        io_timeout: seconds after which I/O counts as failed, and with it everything queued behind it.
        store_stall: longest time in seconds that ``store`` may hold up its caller for want of staging room.
        lookahead: layers that are read ahead of the one being copied, where layers are loaded one by one.
        write_depth: batches of writes that the backend is given at a time.
        max_queued_loads: loads, or layers of loads, that may wait for their turn; others are refused.
        verify: ``"always"``, or the fraction of loaded batches whose checksums are looked at. Less than
            always trusts the drives: damaged bytes may then reach attention.
        late_copies: whether pages on a device may be copied after ``store`` has returned, for servers that
            give blocks back with ``reuse_blocks`` before anything writes to them. Else ``store`` waits for
            the device.
    """

    load_bank_bytes: int = 64 * 1024 * 1024
    store_bank_bytes: int = 256 * 1024 * 1024
    io_timeout: float = 30.0
    store_stall: float = 0.1
    lookahead: int = 4
    write_depth: int = 4
    max_queued_loads: int = 4096
    verify: Verify = "always"
    late_copies: bool = True

    def __post_init__(self) -> None:
        for name in ("io_timeout", "store_stall", "lookahead", "load_bank_bytes", "store_bank_bytes"):
            self._check(name, 0)
        for name in ("write_depth", "max_queued_loads"):
            self._check(name, 1)
        Verification(self.verify)

    def _check(self, name: str, least: int) -> None:
        value = getattr(self, name)
        kinds = (int, float) if name in ("io_timeout", "store_stall") else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
            kind = "number" if float in kinds else "whole number"
            raise ValueError(f"{name} must be a {kind} of at least {least}, not {value!r}")
        if float in kinds and value > MAX_SECONDS:
            raise ValueError(f"{name} must be at most {MAX_SECONDS:.0f} seconds, not {value!r}")
