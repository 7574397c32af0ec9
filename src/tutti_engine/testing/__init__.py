# SPDX-License-Identifier: Apache-2.0
"""For test suites: conformance kits for storage backends and shared stores, and ones that misbehave.

Only the kits need pytest.
"""

import sys

__all__: list[str] = []

if "pytest" in sys.modules:
    # Failures in the kit then show their values, as those in a suite's own files do.
    for kit in ("conformance", "shared_conformance"):
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}.{kit}")
