# SPDX-License-Identifier: Apache-2.0
"""The one error of layouts."""

from __future__ import annotations

__all__ = ["LayoutError"]


class LayoutError(ValueError):
    """A cache whose pages cannot be addressed as described. The message says which rule it breaks."""
