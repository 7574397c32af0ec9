# SPDX-License-Identifier: Apache-2.0
"""The error for what Tutti does not keep."""

from __future__ import annotations

from tutti_engine import TuttiError

__all__ = ["UnsupportedError"]


class UnsupportedError(TuttiError):
    """A model or a set-up whose KV cache Tutti does not keep yet."""
