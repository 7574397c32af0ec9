# SPDX-License-Identifier: Apache-2.0
"""``python -m tutti_engine.cli``."""

from tutti_engine.cli import main

main()
