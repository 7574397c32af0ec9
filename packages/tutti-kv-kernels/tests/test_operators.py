# SPDX-License-Identifier: Apache-2.0
"""The torch operators themselves: schemas, mutation annotations, tracing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tutti_kv_kernels as tk
from tutti_kv_kernels.plane import planes_table

OPS = torch.ops.tutti_kv_kernels


PLANES = planes_table([[tk.Plane(0, 0, 64, 8, 64)], [tk.Plane(0, 512, 64, 8, 32), tk.Plane(1, 0, 48, 8, 32)]])


def storages() -> list[torch.Tensor]:
    return [torch.arange(16 * 64).to(torch.uint8), torch.arange(8 * 48).to(torch.uint8)]


def gather_arguments() -> tuple[Any, ...]:
    window = torch.zeros(4 * 128, dtype=torch.uint8)
    ids, slots, layers = torch.tensor([[1, 5], [0, 7]]), torch.tensor([3, 0]), torch.tensor([1, 0])
    memory = (storages(), PLANES, layers, ids, 1, None, False, window, slots, 128)
    return (*memory, torch.zeros(2).long(), torch.zeros(2, dtype=torch.int32), 1)


def scatter_arguments() -> tuple[Any, ...]:
    gather = gather_arguments()
    OPS.gather(*gather)
    pages, planes, layers, ids, repeats, _, _, window, slots, slot_bytes, checksums, _, workers = gather
    status, read = torch.full((2,), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    memory = (pages, planes, layers, ids, repeats, None)
    return (window, slots, slot_bytes, *memory, checksums, read, status, workers)


def checksum_arguments() -> tuple[Any, ...]:
    return (torch.arange(100).to(torch.uint8), torch.zeros(1, dtype=torch.int64))


def with_tokens(arguments: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """The same call with a part of each segment's tokens, rows of ids used twice, and layer 0 for all."""
    planes = planes_table([[tk.Plane(0, 0, 64, 8, 16, (1, 1, 4), (0, 0, 16), token_dim=2)]])
    changed = list(arguments)
    changed[place : place + 5] = [planes, None, torch.tensor([[1, 5]]), 2, torch.tensor([[0, 3], [2, 6]])]
    return tuple(changed)


CALLS = {
    "gather": (OPS.gather.default, gather_arguments),
    "gather without status": (
        OPS.gather.default,
        lambda: (*gather_arguments()[:11], None, *gather_arguments()[12:]),
    ),
    "gather of tokens": (OPS.gather.default, lambda: with_tokens(gather_arguments(), 1)),
    "scatter": (OPS.scatter.default, scatter_arguments),
    "scatter without read status": (
        OPS.scatter.default,
        lambda: (*scatter_arguments()[:10], None, *scatter_arguments()[11:]),
    ),
    "checksum": (OPS.checksum.default, checksum_arguments),
    "check_planes": (OPS.check_planes.default, lambda: (PLANES, [1024, 384])),
}


@pytest.mark.parametrize("call", CALLS)
def test_operator_keeps_torch_s_rules(call: str) -> None:
    operator, arguments = CALLS[call]
    torch.library.opcheck(operator, arguments())


def test_only_results_are_marked_as_written() -> None:
    written = {
        operator.name: [
            a.name for a in operator.arguments if a.alias_info is not None and a.alias_info.is_write
        ]
        for operator in (
            OPS.gather.default._schema,
            OPS.scatter.default._schema,
            OPS.checksum.default._schema,
        )
    }
    assert written == {
        "tutti_kv_kernels::gather": ["window", "checksums", "status"],
        "tutti_kv_kernels::scatter": ["storages", "status"],
        "tutti_kv_kernels::checksum": ["result"],
    }


def test_a_transfer_can_be_part_of_a_traced_function() -> None:
    layout = tk.PagedLayout(0, 64, 64, 8)
    pages = torch.arange(8 * 64).to(torch.uint8)
    ids, slots = torch.tensor([[1, 5]]), torch.tensor([2])

    def step(window: torch.Tensor) -> torch.Tensor:
        return tk.gather(pages, layout, ids, window, slots, 128) + 0

    traced = torch.compile(step, backend="aot_eager", fullgraph=True)
    expected, found = torch.zeros(512, dtype=torch.uint8), torch.zeros(512, dtype=torch.uint8)
    assert traced(found).equal(step(expected))
    assert found.equal(expected)
    assert found.any()


def test_a_whole_cache_s_transfer_can_be_part_of_a_traced_function() -> None:
    tensors = [torch.randint(0, 256, (2, 6, 4, 2, 8), dtype=torch.uint8) for _ in range(3)]
    cache = tk.PagedCache.from_format(1, tensors, num_blocks=6, block_size=4)
    ids, slots = torch.tensor([[1, 5], [0, 2]]), torch.arange(6).view(3, 2)

    def step(window: torch.Tensor, wiped: torch.Tensor) -> torch.Tensor:
        checksums = cache.gather(ids, window, slots, 256)
        wiped.zero_()
        return cache.scatter(window, slots, 256, ids, checksums) + 0

    before = [tensor.clone() for tensor in tensors]
    window = torch.zeros(6 * 256, dtype=torch.uint8)
    traced = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert traced(window, tensors[0]).tolist() == [[0, 0]] * 3
    moved = [0, 1, 2, 5]
    assert tensors[0][:, moved].equal(before[0][:, moved])
    assert not tensors[0][:, [3, 4]].any()
    assert tensors[1].equal(before[1])
