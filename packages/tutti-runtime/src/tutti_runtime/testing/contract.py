# SPDX-License-Identifier: Apache-2.0
"""What every runtime must do, whatever is below it: one list of checks for all data paths and doubles.

    @pytest.mark.parametrize("check", contract.CHECKS)
    def test_contract(check, tmp_path):
        runtime = make_my_runtime()
        contract.CHECKS[check](subjects.Subject("mine", runtime, tmp_path, make_my_target))
        runtime.shutdown()

A check is a function of a :class:`~tutti_runtime.testing.subjects.Subject` whose runtime nobody has used; it
raises :class:`ContractError`. The device may be late, begin operations in any order and accept few at once,
but not fail: what failures must look like depends on where they come from.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti_runtime.testing.contract_checks import ordering, requests, resources
from tutti_runtime.testing.contract_checks.kit import ContractError
from tutti_runtime.testing.subjects import Subject

__all__ = ["CHECKS", "ContractError"]

CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for module in (requests, ordering, resources)
    for check in (getattr(module, name) for name in module.__all__)
}
"""Name -> check."""
