# SPDX-License-Identifier: Apache-2.0
"""``tutti-nvmed``: one process owns NVMe controllers, others get queue pairs of theirs (docs/nvmed.md)."""

from tutti_runtime.nvmed.server import Broker
from tutti_runtime.nvmed.settings import DEFAULT_SOCKET, BrokerSettings, Grant, load_settings
from tutti_runtime.nvmed.shared_memory import SharedMemory
from tutti_runtime.nvmed.status import read_status

__all__ = [
    "DEFAULT_SOCKET",
    "Broker",
    "BrokerSettings",
    "Grant",
    "SharedMemory",
    "load_settings",
    "read_status",
]
