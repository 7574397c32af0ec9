# SPDX-License-Identifier: Apache-2.0
"""A line in the log now and then, when something has changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from tutti_vllm.metrics.meters import SchedulerMeter
from tutti_vllm.payload import Deltas

__all__ = ["StatusLine", "describe"]

logger = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30

_TROUBLE = {
    "evicted_chunks": "evicted",
    "expired_chunks": "expired",
    "load_failed_chunks": "failed to load",
    "store_failed_chunks": "failed to store",
    "corrupt_chunks": "did not verify",
    "refused_chunks": "not admitted",
    "over_budget_chunks": "over the write budget",
    "over_quota_chunks": "over their tenant's share",
    "store_dropped_chunks": "found no room",
    "shared_load_failed_chunks": "failed to load from the shared store",
    "shared_store_failed_chunks": "failed to be written to the shared store",
}


def describe(moved: Mapping[str, float], gauges: Mapping[str, float]) -> str:
    """Return the line.

    Args:
        moved: growth of the scheduler's counters since the last line.
        gauges: its states of now.
    """

    def count(name: str) -> int:
        return int(moved.get(name, 0))

    parts = []
    if count("prompts"):
        share = count("hit_tokens") / max(1, count("prompt_tokens"))
        parts.append(
            f"{count('hits'):,} of {count('prompts'):,} prompts hit, {count('hit_tokens'):,} of"
            f" {count('prompt_tokens'):,} tokens ({share:.1%})"
        )
    if count("read_bytes"):
        loaded = f"{count('read_bytes') / _MEBIBYTE:,.1f} MiB loaded"
        seconds = count("load_microseconds") / 1e6
        if seconds:
            loaded += f" at {count('read_bytes') / seconds / _GIBIBYTE:.2f} GiB/s a rank"
        parts.append(loaded)
    if count("written_bytes"):
        parts.append(f"{count('written_bytes') / _MEBIBYTE:,.1f} MiB stored")
    if count("shared_hits"):
        parts.append(
            f"{count('shared_hits'):,} hits of the shared store, {count('shared_hit_tokens'):,} tokens"
        )
    if count("shared_written_bytes"):
        parts.append(f"{count('shared_written_bytes') / _MEBIBYTE:,.1f} MiB written there")
    parts += [f"{count(name):,} chunks {words}" for name, words in _TROUBLE.items() if count(name)]
    if count("break_even_refused"):
        parts.append(f"{count('break_even_refused'):,} hits were faster to compute")
    parts.append(f"{int(gauges['resident_chunks']):,} of {int(gauges['capacity_chunks']):,} chunks are taken")
    paused = [what for what in ("load", "store") if gauges.get(f"{what}_breaker")]
    if paused:
        parts.append(f"paused: {', '.join(what + 's' for what in paused)}")
    if gauges.get("shared_up") == 0:
        parts.append("without the shared store")
    return "Tutti: " + "; ".join(parts) + "."


class StatusLine:
    """A thread that writes the line every ``interval`` seconds, and once at the end; 0 never writes it."""

    def __init__(self, meter: SchedulerMeter, interval: float) -> None:
        self._meter = meter
        self._interval = interval
        self._deltas = Deltas()
        self._changes = meter.changes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tutti-status", daemon=True)
        if interval:
            self._thread.start()

    def write(self) -> bool:
        """Write the line if something has changed since the last one; return whether it was written."""
        changes = self._meter.changes
        if changes == self._changes:
            return False
        self._changes = changes
        logger.info("%s", describe(self._deltas.take(self._meter.totals()), self._meter.gauges(broken=False)))
        return True

    def close(self) -> None:
        """Write the last line and end the thread."""
        self._stop.set()
        if self._interval:
            self._thread.join()
            self._write()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._write()

    def _write(self) -> None:
        try:
            self.write()
        except Exception:
            logger.exception("Tutti: the status line could not be written.")
