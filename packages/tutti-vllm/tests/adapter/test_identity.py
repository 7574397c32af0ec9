# SPDX-License-Identifier: Apache-2.0
"""Which caches are taken, and that nothing that changes the bytes shares a store."""

import os
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from tutti_vllm.identity import UnsupportedError, make_geometry, make_namespace


def spec(**changes):
    return FullAttentionSpec(
        **({"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16} | changes)
    )


def cache_config(*specs, hash_block_size=32, layout="LBHNC"):
    groups = [
        KVCacheGroupSpec([f"layers.{2 * n}", f"layers.{2 * n + 1}"], one) for n, one in enumerate(specs)
    ]
    return KVCacheConfig(
        num_blocks=8,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        kv_cache_layout=layout,
        hash_block_size=hash_block_size,
    )


class HfConfig:
    def __init__(self, **values):
        self.values = values

    def to_dict(self):
        return self.values


def server(folder, **changes):
    """A configuration with everything that is read from vLLM's."""
    facts = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "algorithm": "sha256",
        "rope": 10000.0,
        "dtype": torch.bfloat16,
        "load_format": "auto",
        "seed": 0,
        "cache_dtype": "auto",
        "quantization": None,
        "revision": None,
    } | changes
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=facts["tensor_parallel_size"],
            pipeline_parallel_size=facts["pipeline_parallel_size"],
        ),
        model_config=SimpleNamespace(
            model=str(folder),
            revision=facts["revision"],
            hf_config=HfConfig(rope_theta=facts["rope"]),
            dtype=facts["dtype"],
            quantization=facts["quantization"],
            seed=facts["seed"],
        ),
        load_config=SimpleNamespace(load_format=facts["load_format"]),
        cache_config=SimpleNamespace(
            cache_dtype=facts["cache_dtype"], prefix_caching_hash_algo=facts["algorithm"]
        ),
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def digest(config, kv=None, blocks_per_chunk=2, vllm="0.32.0", checksum="c"):
    kv = kv or cache_config(spec())
    geometry = make_geometry(config, kv, blocks_per_chunk)
    return make_namespace(config, kv, geometry, checksum, vllm).digest


def test_geometry_comes_from_vllms_own_numbers(folder):
    geometry = make_geometry(server(folder), cache_config(spec()), 0)
    assert (geometry.num_layers, geometry.block_tokens) == (2, 32)
    assert geometry.page_bytes == 32 * 2 * 64 * 2 * 2
    assert geometry.segment_data_bytes >= 256 * 1024


@pytest.mark.parametrize(
    ("config", "kv", "message"),
    [
        ({"pipeline_parallel_size": 2}, cache_config(spec()), "pipeline_parallel_size is 2"),
        (
            {},
            cache_config(
                spec(),
                SlidingWindowSpec(
                    block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, sliding_window=64
                ),
            ),
            "2 KV cache groups",
        ),
        (
            {},
            cache_config(
                UniformTypeKVCacheSpecs(
                    block_size=32, kv_cache_specs={"layers.0": spec(), "layers.1": spec(head_size=128)}
                )
            ),
            "pages of",
        ),
        ({}, cache_config(spec(), hash_block_size=48), "no whole number"),
    ],
)
def test_what_is_not_supported_is_named(folder, config, kv, message):
    with pytest.raises(UnsupportedError, match=message):
        make_geometry(server(folder, **config), kv, 2)


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor", "builtin"])
def test_block_hashes_that_may_collide_or_change_are_refused(folder, algorithm):
    with pytest.raises(UnsupportedError, match=algorithm):
        digest(server(folder, algorithm=algorithm))


def test_a_random_hash_seed_is_refused(folder, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    with pytest.raises(UnsupportedError, match="PYTHONHASHSEED"):
        digest(server(folder))


def test_the_same_server_finds_its_store_again(folder):
    assert digest(server(folder)) == digest(server(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel_size": 2},
        {"rope": 500000.0},
        {"dtype": torch.float16},
        {"quantization": "fp8"},
        {"revision": "main"},
        {"cache_dtype": "fp8"},
        {"algorithm": "sha256_cbor"},
        {"load_format": "dummy"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_configuration_has_another_store(folder, changes):
    assert digest(server(folder, **changes)) != digest(server(folder))


def test_other_bytes_in_a_page_have_another_store(folder):
    here = digest(server(folder))
    assert digest(server(folder), cache_config(spec(num_kv_heads=4, head_size=32))) != here
    assert digest(server(folder), cache_config(spec(), layout="LBNHC")) != here
    assert digest(server(folder), blocks_per_chunk=4) != here
    assert digest(server(folder), vllm="0.33.0") != here
    assert digest(server(folder), checksum="d") != here


def test_other_weights_under_the_same_name_have_another_store(folder):
    here = digest(server(folder))
    path = folder / "model.safetensors"
    facts = path.stat()
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert digest(server(folder)) != here


@pytest.mark.parametrize("name", ["s3://bucket/model", "org/name:Q4_K_M", "org/never-downloaded"])
def test_weights_that_nothing_tells_apart_are_refused(name):
    with pytest.raises(UnsupportedError, match="nothing tells the weights"):
        digest(server(name))


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="nothing tells the weights"):
        digest(server(tmp_path))


def test_random_weights_differ_by_their_seed(folder):
    one = server(folder, load_format="dummy", seed=1)
    assert digest(one) != digest(server(folder, load_format="dummy", seed=2))


def test_a_hash_seed_of_ones_own_is_part_of_the_name(folder, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    here = digest(server(folder))
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert digest(server(folder)) != here


def test_names_from_outside_never_reach_a_path(folder):
    name = digest(server(folder, revision="../../etc"))
    assert set(name) <= set("0123456789abcdef")
