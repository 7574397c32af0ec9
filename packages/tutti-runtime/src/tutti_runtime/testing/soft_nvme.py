# SPDX-License-Identifier: Apache-2.0
"""A soft NVMe controller's switchboard: what goes wrong, and what its driver did that NVMe does not allow."""

from __future__ import annotations

from tutti_runtime import _core

__all__ = ["SoftNvmeControl"]


class SoftNvmeControl(_core.NvmeSoftControl):
    """Give it to a ``"soft"`` controller as ``control``; it stays good after the runtime is gone."""

    def fail(self, fault: str, **rule: object) -> None:
        """Let ``fault`` happen to the next command, or to those that ``rule`` names.

        Faults of a command's completion: ``"drop_completion"``, ``"late_completion"`` (``delay`` seconds),
        ``"reorder"`` (behind ``hold`` others), ``"wrong_phase"``, ``"duplicate_completion"`` (again after
        ``delay``), ``"stray_completion"``, ``"bad_head"``, ``"status"`` (``status``: a status field). Of the
        controller: ``"fatal"``, ``"reset"``, ``"stuck"``, ``"unplug"`` (the last two until :meth:`heal`). Of
        a doorbell: ``"ignore_doorbell"``.

        ``rule``: ``admin``, ``opcode``, ``first_lba``, ``last_lba``, ``skip``, ``every``, ``times`` (0: no
        end).
        """
        self.add({"fault": fault, **rule})
