# SPDX-License-Identifier: Apache-2.0
"""Caches as vLLM plans and allocates them, described to the kernels by its numbers and by its views."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip(
    "vllm.v1.kv_cache_layout", reason="this vLLM states no placements; it allocates layer by layer"
)
pytest.importorskip("tutti_kv_kernels", reason="tutti-kv-kernels is not installed")

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

import tutti_kv_kernels as kernels

try:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
except ImportError:
    # Since 0.33.
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups

BLOCKS = 6
ALL = [layout.name for layout in KVCacheLayout]


def full(**changes):
    arguments = {"block_size": 16, "num_kv_heads": 2, "head_size": 24, "dtype": torch.bfloat16}
    return FullAttentionSpec(**arguments | changes)


def sliding(**changes):
    arguments = {"block_size": 16, "num_kv_heads": 2, "head_size": 24, "dtype": torch.bfloat16}
    return SlidingWindowSpec(**arguments | {"sliding_window": 64} | changes)


# Models as lists of groups: the spec of its layers, and how many there are.
MODELS = {
    "one group": [(full(), 3)],
    "one head": [(full(num_kv_heads=1), 2)],
    "groups of unequal length": [(full(), 3), (sliding(), 2)],
    "aligned blocks": [(full(block_stride_alignment=4096), 3)],
    "heads of another number in pages of one size": [(full(), 2), (sliding(num_kv_heads=4, head_size=12), 2)],
    "pages of two sizes": [(full(), 2), (sliding(block_size=32), 1)],
}
ONLY_BLOCK_OUTERMOST = {"pages of two sizes"}
NO_ALIGNMENT = {("aligned blocks", "LHBNC")}
CASES = [
    (model, layout)
    for model in MODELS
    for layout in ALL
    if (model not in ONLY_BLOCK_OUTERMOST or layout in ("BLHNC", "BLNHC"))
    and (model, layout) not in NO_ALIGNMENT
]


def planned(model, layout):
    """vLLM's own plan of a cache for the model."""
    groups = [
        KVCacheGroupSpec([f"group{number}.{layer}" for layer in range(count)], spec)
        for number, (spec, count) in enumerate(MODELS[model])
    ]
    cache_config = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: layout,
        prefix_cache_retention_interval=None,
        num_gpu_blocks_override=BLOCKS,
    )
    config = SimpleNamespace(
        cache_config=cache_config, attention_config=SimpleNamespace(hisparse_config=None)
    )
    return get_kv_cache_config_from_groups(config, groups, available_memory=1 << 20)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def placed(request):
    """The plan, vLLM's views of its memory by layer, and the layout."""
    model, name = request.param
    layout = KVCacheLayout[name]
    config = planned(model, layout)
    assert isinstance(config, KVCacheConfig)
    assert config.num_blocks == BLOCKS
    views = allocate_kv_cache(config, torch.device("cpu"), layout)
    memory = kernels.storage_bytes(next(iter(views.values())))
    memory.copy_(torch.randint(0, 256, memory.shape, dtype=torch.uint8))
    return config, views, layout, memory


def specs_of(config):
    return {name: group.kv_cache_spec for group in config.kv_cache_groups for name in group.layer_names}


def by_numbers(config, layout, memory):
    specs = specs_of(config)
    return kernels.PagedCache.from_placements(
        [(tensor, memory) for tensor in config.kv_cache_tensors],
        kv_cache_layout=layout.name,
        page_bytes={name: spec.page_size_bytes for name, spec in specs.items()},
        num_blocks=config.num_blocks,
        num_heads={name: spec.num_heads for name, spec in specs.items()},
    )


def packed(view, layout, ids):
    """The bytes of some blocks of a view in the order of the layout, by torch's own indexing."""
    view = view[ids]
    if layout.name in ("LBNHC", "BLNHC"):
        view = view.transpose(1, 2)
    return view.contiguous().view(torch.uint8).view(-1)


def test_pages_by_numbers_are_those_of_vllms_views(placed):
    config, views, layout, memory = placed
    cache = by_numbers(config, layout, memory)
    assert set(cache.layer_names) == set(views)
    ids = torch.tensor([[4, 1]])
    for index, name in enumerate(cache.layer_names):
        slot_bytes = 2 * cache.block_bytes(index)
        window = torch.zeros(slot_bytes, dtype=torch.uint8)
        sums = cache.gather(ids, window, torch.tensor([0]), slot_bytes, layers=index)
        assert window.equal(packed(views[name], layout, [4, 1]))

        # Back to other blocks; nothing else of the memory changes.
        expected = memory.clone()
        before = memory.clone()
        target = views[name]
        content = target[[4, 1]]
        target[[0, 5]] = content
        expected.copy_(memory)
        memory.copy_(before)
        status = cache.scatter(
            window, torch.tensor([0]), slot_bytes, torch.tensor([[0, 5]]), sums, layers=index
        )
        assert status.tolist() == [0]
        assert memory.equal(expected)


def test_numbers_and_views_describe_the_same_pages(placed):
    config, views, layout, memory = placed
    numbers = by_numbers(config, layout, memory)
    ids = torch.tensor([[2, 5, 0]])
    for spec in {id(spec): spec for spec in specs_of(config).values()}.values():
        layers = {name: views[name] for name, other in specs_of(config).items() if other is spec}
        cache = kernels.PagedCache.from_kv_caches(
            layers,
            kv_cache_layout=layout.name,
            page_bytes=spec.page_size_bytes,
            num_blocks=config.num_blocks,
            block_size=spec.block_size,
        )
        slot_bytes = 3 * cache.block_bytes(0)
        for index, name in enumerate(cache.layer_names):
            windows = torch.zeros(2, slot_bytes, dtype=torch.uint8)
            same = [
                one.gather(ids, window, torch.tensor([0]), slot_bytes, layers=one.layer_names.index(name))
                for one, window in ((cache, windows[0]), (numbers, windows[1]))
            ]
            assert windows[0].equal(windows[1])
            assert same[0].equal(same[1])
            assert index == cache.layer_names.index(name)
