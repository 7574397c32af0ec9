# SPDX-License-Identifier: Apache-2.0
"""How a user says what a token's KV cache takes."""

from __future__ import annotations

import re
from typing import Annotated

import typer

__all__ = ["ShapeOption", "bytes_per_token"]

EXAMPLE = "32x8x128x2"
"""Llama 3 8B in 16 bits."""

ShapeOption = Annotated[
    str,
    typer.Option(
        help="KV cache of a token, over all ranks: LAYERSxKV_HEADSxHEAD_DIMxBYTES (K and V are counted), or"
        " its bytes, such as 131072."
    ),
]


def bytes_per_token(shape: str) -> int:
    """Return the bytes of one token's K and V. Raises ValueError for a text that is no shape."""
    if re.fullmatch(r"[1-9][0-9]{0,11}", shape):
        return int(shape)
    found = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})x([1-9][0-9]{0,5})x([1248])", shape)
    if found is None:
        raise ValueError(f"shape must be like {EXAMPLE} (layers, KV heads, head size, bytes), not {shape!r}")
    layers, heads, size, width = map(int, found.groups())
    return 2 * layers * heads * size * width
