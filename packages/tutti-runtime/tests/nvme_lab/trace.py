# SPDX-License-Identifier: Apache-2.0
"""What QEMU's model says about a driver that breaks the rules of NVMe."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

__all__ = ["IO_COMMAND", "TRACE_ARGUMENTS", "events", "queues_used", "unprovoked"]

RULES = ("pci_nvme_err", "pci_nvme_ub")
TRACE_ARGUMENTS = (*("-trace", "pci_nvme_err*"), *("-trace", "pci_nvme_ub*"), *("-trace", "pci_nvme_del_sq"))
"""Errors that the model answers with, what the specification leaves undefined, and deleted queues."""
IO_COMMAND = "pci_nvme_io_cmd"
"""An event for each I/O command, on request."""


def events(log: Path) -> Counter[str]:
    """How often each event came; a line begins with its name."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split()[0] for line in lines if line.startswith("pci_nvme_"))


def queues_used(log: Path) -> set[int]:
    """Submission queues that brought I/O commands, of a machine that traces them."""
    found = re.findall(rf"^{IO_COMMAND} .*? sqid (\d+) ", log.read_text(), re.MULTILINE)
    return {int(queue) for queue in found}


def unprovoked(log: Path, provoked: frozenset[str]) -> list[str]:
    """Lines of events that the test did not mean to provoke."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(RULES) and line.split()[0] not in provoked]
