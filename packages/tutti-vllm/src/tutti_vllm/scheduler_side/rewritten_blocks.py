# SPDX-License-Identifier: Apache-2.0
"""Which blocks a step may write to although somebody else's KV lies there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["rewritten_blocks"]


def rewritten_blocks(
    scheduler_output: Any, block_tokens: Sequence[int], promised: Iterable[Sequence[int]]
) -> set[int]:
    """Return the blocks that vLLM has handed out for this step or for loads that begin in it.

    A block that its request goes on to fill is none of them once it is named, and neither is one whose
    content was found in vLLM's own prefix cache: what lies before a request's computed tokens stays as it is.

    Args:
        scheduler_output: vLLM's plan of the step.
        block_tokens: tokens of a block, for each KV cache group.
        promised: blocks that loads will fill.
    """
    blocks: set[int] = set()
    for each in promised:
        blocks.update(each)
    for request in scheduler_output.scheduled_new_reqs:
        blocks.update(_behind(request.block_ids, request.num_computed_tokens, block_tokens))
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, tables, tokens in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
        if tables is None:
            continue
        # A resumed request is told its whole table.
        blocks.update(_behind(tables, tokens if request_id in cached.resumed_req_ids else 0, block_tokens))
    for copy in getattr(scheduler_output, "kv_cache_block_copies", None) or ():
        blocks.add(copy.dst_block_id)
    # Also of requests that this step does not compute.
    blocks.update(getattr(scheduler_output, "new_block_ids_to_zero", None) or ())
    return blocks


def _behind(tables: Sequence[Sequence[int]], tokens: int, block_tokens: Sequence[int]) -> Iterator[int]:
    known = len(tables) == len(block_tokens)
    for number, table in enumerate(tables):
        # Of groups that nobody knows all blocks are named, which only costs stores.
        yield from table[tokens // block_tokens[number] if known else 0 :]
