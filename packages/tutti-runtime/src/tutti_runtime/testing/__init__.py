# SPDX-License-Identifier: Apache-2.0
"""Test doubles: real runtimes whose device is late, unordered, faulty, small, short or silent on demand.

    runtime = testing.make_fault_runtime("memory", testing.failing(errno.EIO, item=3))
    ...
    runtime.faults.set_plan(testing.hanging(direction="read"))  # from the next operation on
    ...
    runtime.faults.release()

Everything above the device is the code that production runs: handles, batches, deadlines, striping and
scheduling. :mod:`tutti_runtime.testing.contract` checks any runtime against the contract, and
``python -m tutti_runtime.testing.fuzz`` compares runtimes with a model of what they must hold.
"""

from __future__ import annotations

from tutti_runtime.testing.doubles import FaultRuntime, Faults, make_fault_runtime
from tutti_runtime.testing.plans import (
    FaultPlan,
    FaultRule,
    accepting,
    delayed,
    failing,
    hanging,
    paced,
    reordering,
    short,
)
from tutti_runtime.testing.soft_nvme import SoftNvmeControl

__all__ = [
    "FaultPlan",
    "FaultRule",
    "FaultRuntime",
    "Faults",
    "SoftNvmeControl",
    "accepting",
    "delayed",
    "failing",
    "hanging",
    "make_fault_runtime",
    "paced",
    "reordering",
    "short",
]
