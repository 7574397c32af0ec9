# SPDX-License-Identifier: Apache-2.0
"""A step's payload in the form that vLLM carries from the engine to its loggers."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from tutti_vllm.payload import Payload, is_empty, make_payload, merge

__all__ = ["TuttiStats"]

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30


@dataclass
class TuttiStats(KVConnectorStats):
    """Wraps a ``payload``; adding up over ranks, sides and time is all that it does."""

    def __post_init__(self) -> None:
        self.data: Payload = make_payload() | self.data

    def reset(self) -> None:
        """Forget everything."""
        self.data = make_payload()

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return is_empty(self.data)

    def aggregate(self, other: KVConnectorStats) -> TuttiStats:
        """Add what another rank, side or step says."""
        merge(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM prints of the last seconds in one line; what is 0 and no news is left out."""
        counts, gauges = self.data["counts"], self.data["gauges"]

        def total(*names: str) -> float:
            return float(sum(value for key, value in counts.items() if key.partition("@")[0] in names))

        line: dict[str, int | float] = {
            "hits": int(total("hits")),
            "hit_tokens": int(total("hit_tokens")),
            "loaded_MiB": round(total("load_bytes") / _MEBIBYTE, 1),
            "stored_MiB": round(total("store_bytes") / _MEBIBYTE, 1),
        }
        for name in ("load", "store"):
            size, seconds = total(f"{name}_bytes"), total(f"{name}_seconds")
            if size and seconds:
                line[f"{name}_GiB/s"] = round(size / seconds / _GIBIBYTE, 2)
        news = {
            "failed_chunks": ("load_failed_chunks", "store_failed_chunks"),
            "dropped_chunks": (
                "refused_chunks",
                "over_budget_chunks",
                "over_quota_chunks",
                "store_dropped_chunks",
            ),
            "evicted_chunks": ("evicted_chunks",),
        }
        line |= {name: int(total(*keys)) for name, keys in news.items() if total(*keys)}
        if gauges.get("degraded"):
            line["degraded"] = 1
        if "capacity_chunks" in gauges:
            line["chunks"] = int(gauges["resident_chunks"])
            line["room_for"] = int(gauges["capacity_chunks"])
        return line
