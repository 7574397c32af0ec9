# SPDX-License-Identifier: Apache-2.0
"""``python -m tutti_runtime.nvmed``."""

import sys

from tutti_runtime.nvmed.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
