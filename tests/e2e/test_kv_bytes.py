# SPDX-License-Identifier: Apache-2.0
"""The paged KV itself: what a load brings is, bit by bit, what the cold run computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_TOKENS, prompt

from tutti_vllm.settings.settings import Settings

MODES = ("async", "layerwise")


def settings_of(mode: str) -> dict[str, str]:
    """Return the connector's settings for a load mode, none where there is only one mode."""
    if any(each.name == "load_mode" for each in dataclasses.fields(Settings)):
        return {"load_mode": mode}
    if mode != "async":
        pytest.skip(f"this release has no load mode {mode!r}")
    return {}


class Pages:
    """Looks into an engine's paged KV cache, by the layers that vLLM runs."""

    def __init__(self, engine) -> None:
        core = engine.llm.llm_engine.engine_core.engine_core
        self._scheduler = core.scheduler
        context = core.vllm_config.compilation_config.static_forward_context
        self._layers = {name: layer.kv_cache for name, layer in context.items() if hasattr(layer, "kv_cache")}

    def bytes_of(self, block_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the bytes of some blocks, layer by layer."""
        return {
            name: torch.stack([cache[block].contiguous() for block in block_ids]).view(torch.uint8).clone()
            for name, cache in self._layers.items()
        }

    def watch(self, tables: dict[str, list[int]]):
        """Note the block table of every request while it runs."""
        step = self._scheduler.schedule

        def schedule(*args, **kwargs):
            output = step(*args, **kwargs)
            for request_id in self._scheduler.requests:
                (blocks,) = self._scheduler.kv_cache_manager.get_block_ids(request_id)
                tables[request_id] = list(blocks)
            return output

        self._scheduler.schedule = schedule


def answered(engine, tokens: list[int]) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    """Return the answer and the KV of the prompt's whole chunks, as it lies in the cache afterwards."""
    pages = Pages(engine)
    tables: dict[str, list[int]] = {}
    pages.watch(tables)
    answer = engine.answer(tokens)
    (table,) = tables.values()
    # The last token is computed in any case, so its chunk is not loaded.
    blocks = (len(tokens) - 1) // CHUNK_TOKENS * BLOCKS_PER_CHUNK
    return answer, pages.bytes_of(table[:blocks])


@pytest.mark.parametrize("mode", MODES)
def test_a_load_brings_the_bytes_of_the_cold_run(start, mode):
    tokens = prompt(80, 700)
    settings = settings_of(mode)
    cold_answer, cold = answered(start(settings=settings), tokens)
    # Another engine: other blocks, and nothing in memory.
    engine = start(settings=settings)
    engine.answer(prompt(81, 200))
    before = engine.counters()
    warm_answer, warm = answered(engine, tokens)
    assert engine.transferred(before) == (10, 0)
    assert warm_answer == cold_answer
    assert cold.keys() == warm.keys() and len(cold) == 8
    for name in cold:
        assert cold[name].any(), f"{name} has something to compare"
        assert torch.equal(cold[name], warm[name]), name


def test_a_load_writes_no_block_of_others(start):
    tokens = prompt(82, 500)
    start().answer(tokens)
    engine = start(enable_prefix_caching=False)
    pages = Pages(engine)
    tables: dict[str, list[int]] = {}
    pages.watch(tables)
    count = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    before = pages.bytes_of(range(count))
    engine.answer(tokens, max_tokens=1)
    assert engine.transferred()[0] == 7
    (table,) = tables.values()
    after = pages.bytes_of(range(count))
    others = [block for block in range(1, count) if block not in table]
    for name in before:
        assert torch.equal(before[name][others], after[name][others]), name
