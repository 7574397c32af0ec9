# SPDX-License-Identifier: Apache-2.0
"""What a hit needs of each group, against vLLM's own managers of blocks."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import ChunkedLocalAttentionManager, SlidingWindowManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from tutti_engine import SKIP_BLOCK, Geometry
from tutti_engine.planning.prefix_hits import longest_hit
from tutti_vllm.scheduler_side.block_tables import NULL_BLOCK, LoadTable
from tutti_vllm.start.cache_groups import read_groups

BLOCK = 16
LAYERS = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def config(*specs):
    groups = [KVCacheGroupSpec([f"layers.{number}"], spec) for number, spec in enumerate(specs)]
    return KVCacheConfig(
        num_blocks=4096,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        kv_cache_layout="LBHNC",
        hash_block_size=BLOCK,
    )


def window(tokens, block=BLOCK, extra=0):
    return SlidingWindowSpec(block_size=block, sliding_window=tokens, extra_retained_tokens=extra, **LAYERS)


@given(tokens=st.integers(1, 500), extra=st.integers(0, 5), computed=st.integers(0, 2000))
def test_the_first_token_of_a_window_is_vllms(tokens, extra, computed):
    (group,) = read_groups(config(window(tokens, extra=extra)))
    manager = SlidingWindowManager.__new__(SlidingWindowManager)
    manager.sliding_window, manager.extra_retained_tokens = tokens, extra
    assert group.first_needed(computed) == manager.get_num_skipped_tokens(computed)


@given(span=st.integers(1, 500), computed=st.integers(0, 2000))
def test_the_first_token_of_a_span_is_vllms(span, computed):
    spec = ChunkedLocalAttentionSpec(block_size=BLOCK, attention_chunk_size=span, **LAYERS)
    (group,) = read_groups(config(spec))
    manager = ChunkedLocalAttentionManager.__new__(ChunkedLocalAttentionManager)
    manager.attention_chunk_size = span
    assert group.first_needed(computed) == manager.get_num_skipped_tokens(computed)


@settings(max_examples=60, deadline=None)
@given(
    near=st.integers(2, 200),
    far=st.integers(2, 600),
    wide_blocks=st.booleans(),
    chunks=st.integers(1, 12),
    held_blocks=st.integers(0, 11),
)
def test_the_blocks_that_vllm_gives_are_those_that_a_hit_has(near, far, wide_blocks, chunks, held_blocks):
    # Without a local hit the manager's tables begin with what is loaded; with one the blocks below are its.
    kv = config(
        FullAttentionSpec(block_size=BLOCK, **LAYERS),
        window(near, 2 * BLOCK if wide_blocks else BLOCK),
        window(far),
    )
    geometry = Geometry.of_groups(read_groups(kv), blocks_per_chunk=1 if wide_blocks else 2)
    assert geometry.chunk_tokens == 2 * BLOCK
    end = chunks * geometry.chunk_tokens
    held = min(held_blocks * geometry.block_tokens, end - geometry.block_tokens)
    tables = allocated(kv, end)
    table = LoadTable(geometry, tables, held, end)
    asked = {}

    def has_group(chunk, group):
        asked.setdefault(group, set()).add(chunk)
        return True

    first = held // geometry.chunk_tokens
    hit = longest_hit(geometry, chunks - first, has_group, first_chunk=first)
    assert hit == chunks - first
    for number, group in enumerate(geometry.groups):
        given_blocks = {
            block
            for index, block in enumerate(tables[number])
            if block != NULL_BLOCK and index * group.block_tokens >= held
        }
        named = [block for row in table.rows()[number] for block in row]
        assert {block for block in named if block != SKIP_BLOCK} == given_blocks
        if group.is_partial:
            wanted = {chunk for chunk, row in enumerate(table.rows()[number]) if row}
            assert wanted == asked.get(number, set()), "a chunk is loaded that nobody looked for"
    assert NULL_BLOCK not in table.promised()


def allocated(kv, tokens):
    """Return the block tables that vLLM makes for a request whose first tokens come from outside."""
    init_none_hash(sha256)
    wide = max(group.kv_cache_spec.block_size for group in kv.kv_cache_groups)
    manager = KVCacheManager(kv, 4096, wide, BLOCK, enable_caching=True)
    request = Request(
        "r",
        list(range(tokens + 1)),
        SamplingParams(max_tokens=1),
        None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=tokens, delay_cache_blocks=True)
    return manager.get_block_ids("r")
