# SPDX-License-Identifier: Apache-2.0
"""The formula, and what it must notice."""

from __future__ import annotations

import random

import kv_kernels_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tutti_kv_kernels as tk

# Written down from the reference once; the README lists the same. A change here means a new CHECKSUM_NAME.
VECTORS = [
    (b"", 0x0000000000000000),
    (b"\0", 0x0CB92A094F28446F),
    (bytes(8), 0xAA3B5DD501759C44),
    (b"tutti", 0x1F8C49ADFAAEEDE5),
    (bytes(range(64)), 0x28D1D9D9FA4E252B),
    (bytes(range(256)) * 16 + b"end", 0x8704367ABB4EE5C4),
]


def checksum(data: bytes, misalign: int = 0) -> int:
    buffer = torch.frombuffer(bytearray(bytes(misalign) + data + b"\xff"), dtype=torch.uint8)
    return tk.checksum(buffer[misalign : misalign + len(data)])


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(data: bytes, expected: int) -> None:
    assert reference.checksum(data) == expected
    assert checksum(data) == expected


def test_name_is_the_one_that_stored_checksums_carry() -> None:
    assert tk.CHECKSUM_NAME == "tutti64-1"


@given(data=st.binary(max_size=700), misalign=st.integers(0, 63))
def test_equals_the_reference_at_any_length_and_alignment(data: bytes, misalign: int) -> None:
    assert checksum(data, misalign) == reference.checksum(data)


def test_every_single_bit_flip_changes_it() -> None:
    data = bytearray(random.Random(1).randbytes(203))
    whole = checksum(bytes(data))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(bytes(data)) != whole, f"flip of bit {bit} was not noticed"
        data[bit // 8] ^= 1 << bit % 8


def test_any_two_swapped_words_change_it() -> None:
    words = [random.Random(i).randbytes(8) for i in range(24)]
    whole = checksum(b"".join(words))
    for i in range(len(words)):
        for j in range(i):
            swapped = words.copy()
            swapped[i], swapped[j] = words[j], words[i]
            assert checksum(b"".join(swapped)) != whole, f"swap of words {i} and {j} was not noticed"


def test_every_truncation_and_zero_extension_changes_it() -> None:
    data = random.Random(2).randbytes(100) + bytes(30)
    sums = {checksum(data[:length]) for length in range(len(data) + 1)}
    assert len(sums) == len(data) + 1


def test_zeros_of_different_lengths_differ() -> None:
    assert len({checksum(bytes(length)) for length in range(300)}) == 300


def test_refuses_what_is_not_flat_bytes() -> None:
    with pytest.raises(
        ValueError, match=r"data must be a contiguous 1-D Byte tensor .* Float tensor of shape \[3\]"
    ):
        tk.checksum(torch.zeros(3))
    with pytest.raises(ValueError, match="not contiguous"):
        tk.checksum(torch.zeros(8, dtype=torch.uint8)[::2])
    with pytest.raises(ValueError, match=r"shape \[2, 2\]"):
        tk.checksum(torch.zeros(2, 2, dtype=torch.uint8))
