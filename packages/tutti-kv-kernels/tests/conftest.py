# SPDX-License-Identifier: Apache-2.0
"""Makes the helper modules beside the tests importable, whichever import mode pytest runs in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
