# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a step are named as given to somebody else."""

from types import SimpleNamespace as Some

from tutti_vllm.scheduler_side.rewritten_blocks import rewritten_blocks

NOTHING_CACHED = Some(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())


def output(new=(), cached=NOTHING_CACHED, **more):
    return Some(scheduled_new_reqs=list(new), scheduled_cached_reqs=cached, **more)


def new(tables, computed):
    return Some(block_ids=tables, num_computed_tokens=computed)


def test_of_a_new_request_what_lies_behind_its_computed_tokens():
    assert rewritten_blocks(output([new(([1, 2, 3, 4],), 32)]), [16], []) == {3, 4}
    # A block that is computed in part is written to.
    assert rewritten_blocks(output([new(([1, 2, 3, 4],), 31)]), [16], []) == {2, 3, 4}


def test_each_group_has_blocks_of_its_own_size():
    assert rewritten_blocks(output([new(([1, 2, 3, 4], [7, 8]), 32)]), [16, 32], []) == {3, 4, 8}


def test_of_groups_that_nobody_knows_all_blocks():
    assert rewritten_blocks(output([new(([1, 2], [7, 8]), 32)]), [16], []) == {1, 2, 7, 8}


def test_of_running_requests_what_is_new_and_of_resumed_ones_what_is_behind():
    cached = Some(
        req_ids=["running", "resumed", "as before"],
        new_block_ids=[([5],), ([1, 2, 3],), None],
        num_computed_tokens=[100, 16, 40],
        resumed_req_ids={"resumed"},
    )
    assert rewritten_blocks(output(cached=cached), [16], []) == {5, 2, 3}


def test_what_loads_fill_and_what_vllm_copies_blocks_to():
    copies = [Some(src_block_id=1, dst_block_id=2)]
    assert rewritten_blocks(output(kv_cache_block_copies=copies), [16], [(8, 9), (10,)]) == {2, 8, 9, 10}
    assert rewritten_blocks(output(kv_cache_block_copies=None), [16], []) == set()


def test_what_vllm_fills_with_zeros_for_whomever():
    assert rewritten_blocks(output(new_block_ids_to_zero=[4, 7]), [16], []) == {4, 7}
    assert rewritten_blocks(output(new_block_ids_to_zero=None), [16], []) == set()
