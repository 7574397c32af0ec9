# SPDX-License-Identifier: Apache-2.0
"""URIs of targets whose controller another process owns."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["controller_of"]


def controller_of(uri: str) -> dict[str, Any]:
    """Return the controller of ``nvme://name/nsid?broker=/path``, as ``make_nvme_runtime`` takes one.

    Opening the target checks the rest of the URI. Raises ``ValueError`` for a URI that names no broker.
    """
    parts = urlsplit(uri)
    brokers = [item[len("broker=") :] for item in parts.query.split("&") if item.startswith("broker=")]
    if parts.scheme != "nvme" or not parts.netloc or len(brokers) != 1 or not brokers[0].startswith("/"):
        raise ValueError(
            f"uri={uri!r} must be nvme://name/nsid?broker=/path/of/socket to make a runtime of; for other "
            "targets make one from a mapping"
        )
    return {"transport": "broker", "name": parts.netloc, "socket": unquote(brokers[0])}
