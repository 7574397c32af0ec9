# SPDX-License-Identifier: Apache-2.0
"""Bandwidth, CPU time and latency of each data path beside fio: this is ``python -m tutti_runtime.bench``.

python benchmarks/bandwidth.py /mnt/nvme0 --json bandwidth.json
"""

from __future__ import annotations

import sys

from tutti_runtime.bench.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
