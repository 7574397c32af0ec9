# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine import Geometry, GeometryError, choose_blocks_per_chunk


@given(
    layers=st.integers(1, 200),
    block_tokens=st.sampled_from([16, 32, 128]),
    blocks=st.integers(1, 64),
    page=st.integers(1, 1 << 20),
)
def test_segments_hold_their_pages_and_never_overlap(layers, block_tokens, blocks, page):
    geometry = Geometry(layers, block_tokens, blocks, page)
    assert geometry.segment_bytes % 4096 == 0
    assert 0 <= geometry.segment_bytes - geometry.segment_data_bytes < 4096
    assert geometry.chunk_bytes % 16384 == 0
    assert geometry.chunk_bytes >= layers * geometry.segment_bytes


@pytest.mark.parametrize(
    ("page_bytes", "block_tokens", "blocks"),
    [
        (64 * 1024, 16, 4),  # Llama 8B, bf16: 256 KiB at once
        (512 * 1024, 128, 1),  # large blocks need no company
        (576 * 2 * 16, 16, 16),  # MLA latent
        (1024, 32, 16),  # a test model: stops at 512 tokens
        (1024, 1024, 1),  # a block beyond the limit is taken as it is
    ],
)
def test_automatic_chunk_is_large_enough_to_read_fast_and_small_enough_to_hit(
    page_bytes, block_tokens, blocks
):
    assert choose_blocks_per_chunk(page_bytes, block_tokens) == blocks


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4"])
def test_a_size_that_is_no_positive_whole_number_is_named(bad):
    with pytest.raises(GeometryError, match="page_bytes"):
        Geometry(1, 16, 1, bad)
