# SPDX-License-Identifier: Apache-2.0
"""From a server's tensors, or the numbers it states, to planes."""

from tutti_kv_kernels.layouts.formats import FORMATS, Format, planes_of_format
from tutti_kv_kernels.layouts.placements import Placement, planes_of_placements
from tutti_kv_kernels.layouts.storages import StorageList
from tutti_kv_kernels.layouts.strided import IdKind
from tutti_kv_kernels.layouts.views import KV_CACHE_LAYOUTS, planes_of_views

__all__ = [
    "FORMATS",
    "KV_CACHE_LAYOUTS",
    "Format",
    "IdKind",
    "Placement",
    "StorageList",
    "planes_of_format",
    "planes_of_placements",
    "planes_of_views",
]
