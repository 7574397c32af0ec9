# SPDX-License-Identifier: Apache-2.0
"""A shared store in a directory that is cut, hangs, is full, loses and damages objects at random."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

__all__ = ["SharedTrouble", "shared_settings"]

_SWITCHES = ("cut", "hang", "full", "slow")
_SLOW_SECONDS = "0.01"
_CHANCE = 0.15


def shared_settings(pool: Path, chance: random.Random) -> dict[str, Any]:
    """Return the connector's settings of a server that shares ``pool``."""
    return {
        "shared_store": {"kind": "tutti_engine.testing.shared_stores:DirectoryStore", "path": str(pool)},
        "shared_write": chance.choice(("always", "always", "second_sight")),
        "shared_lookup_ms": chance.choice((0, 50, 500)),
        "shared_hit_seconds": chance.choice((1, 60)),
        "shared_miss_seconds": 1,
        "shared_timeout_seconds": 1,
    }


class SharedTrouble:
    """Changes what the servers of a pool meet.

    Args:
        pool: the directory.
        seed: of what happens.
    """

    def __init__(self, pool: Path, seed: int) -> None:
        self._pool = pool
        self._chance = random.Random(seed)

    def act(self) -> None:
        """Change something, or mostly nothing."""
        if self._chance.random() >= _CHANCE:
            return
        what = self._chance.choice((*_SWITCHES, "heal", "heal", "lose", "damage", "swap"))
        if what == "heal":
            self.heal()
        elif what in _SWITCHES:
            (self._pool / what).write_text(_SLOW_SECONDS)
        else:
            # Writers come and go beside this.
            with contextlib.suppress(FileNotFoundError):
                self._spoil(what)

    def heal(self) -> None:
        """Set all switches back."""
        for name in _SWITCHES:
            (self._pool / name).unlink(missing_ok=True)

    def _spoil(self, what: str) -> None:
        names = sorted(self._pool.glob("*.obj"))
        if not names:
            return
        one, other = self._chance.choice(names), self._chance.choice(names)
        if what == "lose":
            for each in names[:: self._chance.choice((1, 2, 7))]:
                each.unlink()
            return
        data = bytearray(other.read_bytes())
        if what == "damage":
            data = bytearray(one.read_bytes())
            data[self._chance.choice((0, 8, 40, 120, 4096, 4100, len(data) // 2))] ^= 1
        part = one.with_suffix(".spoilt")
        part.write_bytes(data)
        part.replace(one)
