# SPDX-License-Identifier: Apache-2.0
"""The reading of FIEMAP's answers, over bytes that no kernel has written: it refuses, it never misreads."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tutti_runtime as tr
from tutti_runtime import _core

PAGE = 4096
TOP = 2**64 - 1
LAST, MERGED = 0x1, 0x1000
# flag -> reason, in the order in which they are looked at
REASONS = {
    0x200: "inline",
    0x400: "inline",
    0x8: "encoded",
    0x80: "encoded",
    0x4: "delalloc",
    0x2: "unknown",
    0x800: "unwritten",
    0x2000: "shared",
    0x100: "misaligned",
    0x4000: "unknown",
}


def reply(*extents: tuple[int, int, int, int], count: int | None = None) -> bytes:
    """struct fiemap with its extents, as in linux/fiemap.h."""
    head = struct.pack("=QQIIII", 0, TOP, 0, len(extents) if count is None else count, len(extents), 0)
    rows = [
        struct.pack("=QQQQQIIII", logical, physical, length, 0, 0, flags, 0, 0, 0)
        for logical, physical, length, flags in extents
    ]
    return head + b"".join(rows)


def reason(data: bytes, size: int) -> str:
    with pytest.raises(tr.ExtentError) as caught:
        _core.prove_extents(data, size)
    return caught.value.reason


def test_neighbours_become_one_run() -> None:
    data = reply((0, 8192, 4096, 0), (4096, 12288, 8192, MERGED), (12288, 4096, 4096, LAST))
    assert _core.prove_extents(data, 16384).tolist() == [[0, 8192, 12288], [12288, 4096, 4096]]


def test_the_end_is_cut_to_the_file() -> None:
    data = reply((0, 8192, 65536, 0), (65536, 0, 4096, 0x800 | LAST))
    assert _core.prove_extents(data, 5000).tolist() == [[0, 8192, 8192]]


@pytest.mark.parametrize("flag", REASONS)
def test_each_flag_has_its_reason(flag: int) -> None:
    assert reason(reply((0, 4096, 4096, flag | LAST)), 4096) == REASONS[flag]


@pytest.mark.parametrize(
    ("data", "size", "expected"),
    [
        (b"", 4096, "malformed"),
        (b"\0" * 31, 4096, "malformed"),
        (reply(), 4096, "not_covered"),
        (reply((0, 4096, 4096, 0), count=2), 4096, "malformed"),
        (reply((0, 4096, 4096, 0), count=2**32 - 1), 4096, "malformed"),
        (reply((0, 4096, 4096, 0))[:-1], 4096, "malformed"),
        (reply((0, 4096, 0, 0)), 4096, "malformed"),
        (reply((TOP - 4095, 0, 8192, 0)), 4096, "malformed"),
        (reply((0, TOP - 4095, 8192, 0)), 4096, "malformed"),
        (reply((0, 4096, 8192, 0), (4096, 65536, 4096, 0)), 65536, "malformed"),
        (reply((4096, 4096, 4096, 0), (0, 65536, 4096, 0)), 65536, "malformed"),
        (reply((4096, 4096, 4096, 0)), 8192, "hole"),
        (reply((0, 4096, 4096, 0), (8192, 65536, 4096, 0)), 12288, "hole"),
        (reply((0, 4096, 4096, 0)), 4097, "not_covered"),
        (reply((0, 4096, 4096, 0)), 0, "empty"),
        (reply((0, 4096, 4096, 0)), TOP, "malformed"),
        (reply((0, 512, 4096, 0)), 4096, "misaligned"),
        (reply((0, 4096, 5120, 0)), 8192, "misaligned"),
        (reply(*[(i * PAGE, 2 * i * PAGE, PAGE, 0) for i in range(125)]), 125 * PAGE, "too_many"),
    ],
)
def test_what_is_refused(data: bytes, size: int, expected: str) -> None:
    assert reason(data, size) == expected


def test_124_runs_are_possible() -> None:
    data = reply(*[(i * PAGE, 2 * i * PAGE, PAGE, 0) for i in range(124)])
    assert len(_core.prove_extents(data, 124 * PAGE)) == 124


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, TOP))
def test_any_bytes_are_read_or_refused(data: bytes, size: int) -> None:
    try:
        rows = _core.prove_extents(data, size).tolist()
    except tr.ExtentError as error:
        assert error.reason in tr.EXTENT_REASONS
        return
    assert sum(row[2] for row in rows) == -(-size // PAGE) * PAGE


def model(extents: list[tuple[int, int, int, int]], size: int) -> list[int] | str:
    """Device page of every page of the file, or the reason; page by page."""
    if size == 0:
        return "empty"
    if size > TOP - PAGE:
        return "malformed"
    end = 0
    for logical, physical, length, _ in extents:
        if length == 0 or logical + length > TOP or physical + length > TOP or logical < end:
            return "malformed"
        end = (logical + length) & TOP
    needed = -(-size // PAGE)
    pages: list[int] = []
    runs = 0
    for logical, physical, length, flags in extents:
        if len(pages) >= needed:
            break
        if logical > len(pages) * PAGE:
            return "hole"
        for flag, why in REASONS.items():
            if flags & flag:
                return why
        if flags & ~(LAST | MERGED):
            return "unknown"
        if logical % PAGE or physical % PAGE or length % PAGE:
            return "misaligned"
        runs += not pages or pages[-1] + 1 != physical // PAGE
        if runs > 124:
            return "too_many"
        pages += range(physical // PAGE, (physical + length) // PAGE)
    return pages[:needed] if len(pages) >= needed else "not_covered"


NUMBERS = st.integers(0, 40).map(lambda page: page * PAGE)
ODD = st.one_of(NUMBERS, st.integers(0, 40 * PAGE), st.sampled_from([TOP, TOP - PAGE + 1, 2**63]))
FLAGS = st.sampled_from([0, 0, 0, 0, LAST, MERGED, *REASONS, 0x800 | 0x2000, 0x300, 2**31])


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Mostly a file as it should be, with some field off here and there."""
    extents = []
    end = 0
    for _ in range(draw(st.integers(0, 6))):
        length = draw(NUMBERS)
        logical = draw(st.one_of(st.just(end), st.just(end), st.just(end), ODD))
        # Large lengths would only make the page-by-page model slow.
        extents.append(
            (logical, draw(ODD), length if draw(st.booleans()) else max(length, PAGE), draw(FLAGS))
        )
        end = (logical + length) & TOP
    return extents


@settings(max_examples=250, deadline=None)
@given(chains(), st.integers(0, 150 * PAGE))
def test_answers_agree_with_a_page_by_page_model(extents: list[tuple[int, int, int, int]], size: int) -> None:
    expected = model(extents, size)
    try:
        rows = _core.prove_extents(reply(*extents), size).tolist()
        found: list[int] | str = [
            page
            for _, physical, length in rows
            for page in range(physical // PAGE, (physical + length) // PAGE)
        ]
    except tr.ExtentError as error:
        found = error.reason
    assert found == expected
