# SPDX-License-Identifier: Apache-2.0
"""For test suites:

The conformance kit that every storage backend has to pass, and backends that misbehave.
"""

__all__: list[str] = []
