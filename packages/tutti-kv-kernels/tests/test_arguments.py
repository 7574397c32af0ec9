# SPDX-License-Identifier: Apache-2.0
"""Every argument is checked before the first byte is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tutti_kv_kernels as tk

PAGE, BLOCKS, SLOT, SLOTS = 64, 8, 160, 4
POISON = 0xA5


def arguments() -> dict[str, Any]:
    return {
        "pages": torch.arange(BLOCKS * PAGE).to(torch.uint8),
        "layout": tk.PagedLayout(0, PAGE, PAGE, BLOCKS),
        "block_ids": torch.tensor([[1, 5], [0, 7]]),
        "window": torch.full((SLOT * SLOTS,), POISON, dtype=torch.uint8),
        "slots": torch.tensor([3, 0]),
        "slot_bytes": SLOT,
        "checksums": torch.tensor([1, 2]),
    }


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


WIDE_IDS = torch.zeros(2, 4, dtype=torch.int64)

# name: (changed arguments, what the message must say)
REFUSED_BY_BOTH: dict[str, tuple[dict[str, Any], str]] = {
    "block beyond the last": ({"block_ids": ids([1, 5], [8, 0])}, r"block_ids\[1, 0\] is 8, outside"),
    "huge block": ({"block_ids": ids([1, 2**62], [3, 0])}, rf"block_ids\[0, 1\] is {2**62}, outside"),
    "block below skip": ({"block_ids": ids([1, -2], [3, 0])}, r"block_ids\[0, 1\] is -2, outside"),
    "slot beyond the last": (
        {"slots": torch.tensor([3, 4])},
        r"slots\[1\] is 4, outside the window's 4 slots",
    ),
    "huge slot": ({"slots": torch.tensor([3, 2**62])}, rf"slots\[1\] is {2**62}, outside"),
    "negative slot": ({"slots": torch.tensor([-1, 0])}, r"slots\[0\] is -1, outside"),
    "slot too small": (
        {"slot_bytes": 127},
        "slot_bytes 127 is too small for a segment of 2 blocks of 64 bytes",
    ),
    "slot zero": ({"slot_bytes": 0}, "slot_bytes must be positive, got 0"),
    "slot larger than the window": ({"slot_bytes": 2**62}, "outside the window's 0 slots"),
    "no blocks": ({"block_ids": torch.zeros(2, 0, dtype=torch.int64)}, "at least one block per segment"),
    "layout beyond pages": ({"layout": tk.PagedLayout(1, PAGE, PAGE, BLOCKS)}, "layout reaches beyond pages"),
    "huge layout": ({"layout": tk.PagedLayout(0, 2**62, PAGE, 2**62)}, "layout reaches beyond pages"),
    "offset beyond pages": ({"layout": tk.PagedLayout(2**62, PAGE, PAGE, 1)}, "layout reaches beyond pages"),
    "int32 blocks": (
        {"block_ids": ids([1, 5], [0, 7]).int()},
        r"block_ids must .* Int tensor of shape \[2, 2\]",
    ),
    "int32 slots": ({"slots": torch.tensor([3, 0]).int()}, "slots must be a contiguous 1-D Long tensor"),
    "2-D slots": ({"slots": torch.tensor([[3, 0]])}, r"slots must be .* shape \[1, 2\]"),
    "1-D blocks": ({"block_ids": torch.tensor([1, 5])}, "block_ids must be a contiguous 2-D Long tensor"),
    "strided blocks": ({"block_ids": WIDE_IDS[:, ::2]}, "block_ids must be .* not contiguous"),
    "rows missing": (
        {"block_ids": ids([1, 5])},
        r"one row for each of the 2 slots, got a Long tensor of shape \[1, 2\]",
    ),
    "float window": ({"window": torch.zeros(SLOT * SLOTS)}, "window must be a contiguous 1-D Byte tensor"),
    "strided window": (
        {"window": torch.zeros(SLOT * SLOTS * 2, dtype=torch.uint8)[::2]},
        "window must .* not cont",
    ),
    "2-D pages": (
        {"pages": torch.zeros(BLOCKS, PAGE, dtype=torch.uint8)},
        "pages must be a contiguous 1-D Byte",
    ),
    "signed pages": ({"pages": torch.zeros(BLOCKS * PAGE, dtype=torch.int8)}, "pages must be .* Char tensor"),
    "few checksums": (
        {"checksums": torch.tensor([1])},
        "checksums must have one entry for each of the 2 slots",
    ),
    "int32 checksums": ({"checksums": torch.tensor([1, 2]).int()}, "checksums must be a contiguous 1-D Long"),
    "no threads": ({"num_threads": 0}, "num_threads must be 1 to 64, got 0"),
    "many threads": ({"num_threads": 65}, "num_threads must be 1 to 64, got 65"),
}
REFUSED_BY_GATHER = REFUSED_BY_BOTH | {
    "skipped block": ({"block_ids": ids([1, -1], [3, 0])}, r"block_ids\[0, 1\] is -1, outside 0 to 7"),
    "slot twice": ({"slots": torch.tensor([3, 3])}, r"slots\[1\] repeats slot 3"),
}
REFUSED_BY_SCATTER = REFUSED_BY_BOTH | {
    "block twice": ({"block_ids": ids([1, 5], [0, 1])}, r"block_ids\[1, 1\] repeats block 1"),
}


@pytest.mark.parametrize("case", REFUSED_BY_GATHER)
def test_gather_refuses_and_writes_nothing(case: str) -> None:
    changes, message = REFUSED_BY_GATHER[case]
    given = arguments() | changes
    before = given["window"].clone()
    with pytest.raises(ValueError, match=message):
        tk.gather_into(**given)
    assert given["window"].equal(before)
    assert given["checksums"].tolist() == [1, 2][: given["checksums"].numel()]


@pytest.mark.parametrize("case", REFUSED_BY_SCATTER)
def test_scatter_refuses_and_writes_nothing(case: str) -> None:
    changes, message = REFUSED_BY_SCATTER[case]
    good = arguments()
    # The slots hold what the checksums promise: only the refused argument can keep the pages as they are.
    tk.gather_into(**good)
    given = good | {"pages": torch.full_like(good["pages"], POISON)} | changes
    before = given["pages"].clone()
    with pytest.raises(ValueError, match=message):
        tk.scatter(**given)
    assert given["pages"].equal(before)


def test_window_inside_pages_is_refused() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    given = arguments() | {"pages": memory, "window": memory[-SLOT * SLOTS :]}
    with pytest.raises(ValueError, match=r"window \(640 bytes\) overlaps pages \(4096 bytes\)"):
        tk.gather_into(**given)
    with pytest.raises(ValueError, match="overlaps"):
        tk.scatter(**given)


def test_window_beside_pages_in_one_storage_is_allowed() -> None:
    memory = torch.zeros(BLOCKS * PAGE + SLOT * SLOTS, dtype=torch.uint8)
    given = arguments() | {"pages": memory[: BLOCKS * PAGE], "window": memory[BLOCKS * PAGE :]}
    tk.gather_into(**given)
    assert tk.scatter(**given).all()


def test_nothing_to_do_is_allowed() -> None:
    given = arguments() | {"slots": torch.empty(0, dtype=torch.int64), "block_ids": WIDE_IDS[:0]}
    given["slot_bytes"] = 4 * PAGE
    del given["checksums"]
    assert tk.gather(**given).shape == (0,)
    assert tk.scatter(**given, checksums=torch.empty(0, dtype=torch.int64)).shape == (0,)


def test_tensors_of_other_devices_are_refused() -> None:
    given = arguments()
    with pytest.raises(ValueError, match="all tensors must be on one device, got cpu, meta"):
        tk.gather_into(**given | {"window": given["window"].to("meta")})


def test_tensors_without_a_kernel_are_refused() -> None:
    given = arguments()
    given["pages"] = given["pages"].to_sparse()
    message = r"kernels for dense CPU tensors only, .* cpu \(torch.sparse_coo\), cpu \(torch.strided\)"
    with pytest.raises(ValueError, match=message):
        tk.gather_into(**given)


def test_ids_that_live_in_the_window_are_read_before_it_is_written() -> None:
    given = arguments()
    packed_ids = given["window"][3 * SLOT : 3 * SLOT + 32].view(torch.int64).view(2, 2)
    packed_ids.copy_(given["block_ids"])
    expected = arguments()
    tk.gather_into(**expected)
    tk.gather_into(**given | {"block_ids": packed_ids})
    assert given["window"].equal(expected["window"])
