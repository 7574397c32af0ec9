# SPDX-License-Identifier: Apache-2.0
"""Which ways between a drive and a GPU this machine allows, and what each of the others is missing.

Only files below ``/proc``, ``/sys``, ``/boot`` and ``/dev`` are looked at; no driver is loaded, no device is
opened and nothing is changed. ``docs/gpu-direct.md`` gives the source of every requirement.
"""

from __future__ import annotations

from tutti_runtime.doctor.findings import Finding, State, Way
from tutti_runtime.doctor.system import System
from tutti_runtime.doctor.ways import WAYS, examine

__all__ = ["WAYS", "Finding", "State", "System", "Way", "examine"]
