# SPDX-License-Identifier: Apache-2.0
"""Checksummed gather and scatter between a paged KV cache and packed staging segments."""

from tutti_kv_kernels.cache import PagedCache
from tutti_kv_kernels.costs import Decision, Mover, MoverCosts, TransferCosts
from tutti_kv_kernels.device import DeviceTransfer, Verify, has_cuda_kernels, measure_costs
from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layout import PagedLayout
from tutti_kv_kernels.layouts import FORMATS, KV_CACHE_LAYOUTS, Format
from tutti_kv_kernels.layouts.storages import storage_bytes
from tutti_kv_kernels.ops import CHECKSUM_NAME, ScatterStatus, checksum, gather, gather_into, scatter
from tutti_kv_kernels.plane import Plane

__version__ = "0.1.0"

__all__ = [
    "CHECKSUM_NAME",
    "FORMATS",
    "KV_CACHE_LAYOUTS",
    "Decision",
    "DeviceTransfer",
    "Format",
    "LayoutError",
    "Mover",
    "MoverCosts",
    "PagedCache",
    "PagedLayout",
    "Plane",
    "ScatterStatus",
    "TransferCosts",
    "Verify",
    "__version__",
    "checksum",
    "gather",
    "gather_into",
    "has_cuda_kernels",
    "measure_costs",
    "scatter",
    "storage_bytes",
]
