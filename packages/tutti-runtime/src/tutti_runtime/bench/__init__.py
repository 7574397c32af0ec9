# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the data paths on one file system, beside fio: ``python -m tutti_runtime.bench FOLDER``."""

from __future__ import annotations

from tutti_runtime.bench.settings import Settings
from tutti_runtime.bench.suite import measure

__all__ = ["Settings", "measure"]
