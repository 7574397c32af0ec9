# SPDX-License-Identifier: Apache-2.0
"""A server that owns a store until its standard input ends. Run as a program: ROOT [KEY...]."""

from __future__ import annotations

import sys
from pathlib import Path

from tutti_engine import Geometry
from tutti_engine.testing.small_server import SmallServer

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)
"""Pages that do not fill their segment: what is between them must not matter."""


def start(roots: list[Path]) -> SmallServer:
    return SmallServer(roots, capacity_bytes=16 << 20, geometry=GEOMETRY)


if __name__ == "__main__":
    server = start([Path(sys.argv[1])])
    server.store_chunks([key.encode() for key in sys.argv[2:]])
    assert server.store.catalogue.flush(30)
    print("ready", flush=True)
    sys.stdin.read()
    server.close()
