# SPDX-License-Identifier: Apache-2.0
"""For test suites: the conformance kit that every storage backend has to pass, and backends that misbehave.

Only ``conformance`` needs pytest.
"""

import sys

__all__: list[str] = []

if "pytest" in sys.modules:
    # Failures in the kit then show their values, as those in a suite's own files do.
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.conformance")
