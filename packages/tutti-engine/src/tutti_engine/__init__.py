# SPDX-License-Identifier: Apache-2.0
"""Tutti's engine: keeps the KV cache of an inference server in a storage backend.

Importing it needs the standard library only.
"""

from tutti_engine.backend import SPI_VERSION, SegmentBatch, SegmentHandle, StagingWindow, StorageBackend
from tutti_engine.engine import TuttiEngine
from tutti_engine.errors import (
    BackendError,
    CatalogueError,
    GeometryError,
    RootError,
    StoreBusyError,
    TuttiError,
)
from tutti_engine.execution.ring_window import RingWindow
from tutti_engine.execution.settings import ExecutionSettings
from tutti_engine.geometry import CacheGroup, Geometry, choose_blocks_per_chunk
from tutti_engine.mover import Mover
from tutti_engine.plan import (
    SKIP_BLOCK,
    ChunkId,
    ChunkKey,
    ChunkTransfer,
    LoadPlan,
    LoadResult,
    StorePlan,
    StoreResult,
    StoreSettled,
)
from tutti_engine.planning.break_even import BreakEven, Decision
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.registry import backend_names, make_backend

__version__ = "0.1.0"

__all__ = [
    "SKIP_BLOCK",
    "SPI_VERSION",
    "BackendError",
    "BreakEven",
    "CacheGroup",
    "CatalogueError",
    "Decision",
    "ExecutionSettings",
    "ChunkId",
    "ChunkKey",
    "ChunkTransfer",
    "Geometry",
    "GeometryError",
    "LoadPlan",
    "LoadResult",
    "Mover",
    "PolicySettings",
    "RingWindow",
    "RootError",
    "SegmentBatch",
    "SegmentHandle",
    "StagingWindow",
    "StorageBackend",
    "StoreBusyError",
    "StorePlan",
    "StoreResult",
    "StoreSettled",
    "TuttiEngine",
    "TuttiError",
    "__version__",
    "backend_names",
    "choose_blocks_per_chunk",
    "make_backend",
]
