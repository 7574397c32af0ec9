# SPDX-License-Identifier: Apache-2.0
"""How a store's directories are called, and what must be as last time for its catalogue to mean anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutti_engine.errors import GeometryError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace

__all__ = ["check_replica", "layout_facts", "store_name"]


def check_replica(replica: tuple[int, int]) -> tuple[int, int]:
    """Return a replica's number and how many they are. Raises GeometryError."""
    number, replicas = replica
    if not 0 <= number < replicas:
        raise GeometryError(f"replica {replica} must be a number from 0 and how many there are")
    return number, replicas


def store_name(namespace: Namespace, number: int, replicas: int) -> str:
    """Return the name of a store's directories."""
    return namespace.digest if replicas == 1 else f"{namespace.digest}-{number}of{replicas}"


def layout_facts(directories: Sequence[Path], geometry: Geometry, ranks: int) -> dict[str, Any]:
    """Return what must be as last time for the catalogue's rows to mean anything."""
    return {
        "roots": [str(directory) for directory in directories],
        "ranks": ranks,
        "num_layers": geometry.num_layers,
        "segment_bytes": geometry.segment_bytes,
        "chunk_bytes": geometry.chunk_bytes,
    }
