# SPDX-License-Identifier: Apache-2.0
"""Memory that a drive can take in few pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti_runtime import HostMemory

MIB = 1 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_of(address: int) -> list[str]:
    """Flags of the mapping that holds an address, as in proc(5), smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if not word.endswith(":"):
            begin, end = (int(part, 16) for part in word.split("-"))
            inside = begin <= address < end
        elif inside and word == "VmFlags:":
            return line.split()[1:]
    raise LookupError(hex(address))


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no transparent huge pages")
def test_large_memory_is_private_and_asks_for_huge_pages() -> None:
    memory = HostMemory(4 * MIB)

    flags = flags_of(memory.address)

    assert memory.huge_pages
    assert memory.address % (2 * MIB) == 0
    assert "hg" in flags
    assert "sh" not in flags


@pytest.mark.parametrize("size", [1, 4096, 64 << 10, MIB, 2 * MIB, 5 * MIB + 1])
def test_every_size_is_aligned_zeroed_and_writable_to_its_end(size: int) -> None:
    memory = HostMemory(size)

    assert memory.address % (64 << 10) == 0
    assert memory.bytes.nbytes == memory.size == size
    assert not memory.bytes.any()
    memory.bytes[-1] = 7
    assert memory.bytes[-1] == 7


def test_the_array_keeps_the_memory() -> None:
    array = HostMemory(2 * MIB).bytes
    array[:] = 3
    assert array.sum(dtype=int) == 3 * 2 * MIB
