# SPDX-License-Identifier: Apache-2.0
"""Checksummed gather and scatter between a paged KV cache and packed staging segments."""

from tutti_kv_kernels.layout import LayoutError, PagedLayout
from tutti_kv_kernels.ops import CHECKSUM_NAME, checksum, gather, gather_into, scatter, storage_bytes
from tutti_kv_kernels.plane import Plane

__version__ = "0.1.0"

__all__ = [
    "CHECKSUM_NAME",
    "LayoutError",
    "PagedLayout",
    "Plane",
    "__version__",
    "checksum",
    "gather",
    "gather_into",
    "scatter",
    "storage_bytes",
]
