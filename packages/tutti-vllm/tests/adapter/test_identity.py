# SPDX-License-Identifier: Apache-2.0
"""Which caches are taken, and that nothing that changes the bytes shares a store."""

import os
import platform
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.config.multimodal import MultiModalConfig
from vllm.renderers.base import BaseRenderer
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from tutti_vllm.start.cache_groups import layer_names
from tutti_vllm.start.identity import (
    UnsupportedError,
    config_digest,
    make_geometry,
    make_namespace,
    names_media_by_content,
)
from tutti_vllm.start.topology import read_topology


def spec(**changes):
    return FullAttentionSpec(
        **({"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16} | changes)
    )


def window(**changes):
    return SlidingWindowSpec(
        **(
            {
                "block_size": 32,
                "num_kv_heads": 2,
                "head_size": 64,
                "dtype": torch.bfloat16,
                "sliding_window": 100,
            }
            | changes
        )
    )


def rswa():
    return RSWASpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, rswa_window=128)


def mamba():
    return MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))


def cache_config(*specs, hash_block_size=32, layout="LBHNC", replicas=1):
    groups = [
        KVCacheGroupSpec([f"layers.{2 * n}", f"layers.{2 * n + 1}"], one) for n, one in enumerate(specs)
    ]
    return KVCacheConfig(
        num_blocks=8,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        kv_cache_layout=layout,
        hash_block_size=hash_block_size,
        kv_tp_replicas=replicas,
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
        "decode_context_parallel_size": 1,
        "layers": 2,
        "method": None,
        "algorithm": "sha256",
        "rope": 10000.0,
        "dtype": torch.bfloat16,
        "load_format": "auto",
        "seed": 0,
        "cache_dtype": "auto",
        "quantization": None,
        "revision": None,
        "max_model_len": 4096,
        "original_max_model_len": None,
        "media": None,
    } | changes
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=facts["tensor_parallel_size"],
            pipeline_parallel_size=facts["pipeline_parallel_size"],
            decode_context_parallel_size=facts["decode_context_parallel_size"],
        ),
        speculative_config=None if facts["method"] is None else SimpleNamespace(method=facts["method"]),
        model_config=SimpleNamespace(
            model=str(folder),
            revision=facts["revision"],
            hf_config=HfConfig(rope_theta=facts["rope"]),
            dtype=facts["dtype"],
            quantization=facts["quantization"],
            seed=facts["seed"],
            max_model_len=facts["max_model_len"],
            original_max_model_len=facts["original_max_model_len"],
            multimodal_config=facts["media"],
            get_total_num_hidden_layers=lambda: facts["layers"],
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


def test_one_configuration_in_two_places_is_one(tmp_path):
    from transformers import AutoConfig, LlamaConfig

    def digest_of(place, **changes):
        LlamaConfig(hidden_size=64, **changes).save_pretrained(tmp_path / place)
        found = AutoConfig.from_pretrained(tmp_path / place)
        return config_digest(SimpleNamespace(model_config=SimpleNamespace(hf_config=found)))

    assert digest_of("here") == digest_of("there")
    assert digest_of("here") != digest_of("other", num_hidden_layers=3)


def test_geometry_comes_from_vllms_own_numbers(folder):
    geometry = make_geometry(server(folder), cache_config(spec()), 0)
    assert (geometry.num_layers, geometry.block_tokens) == (2, 32)
    assert geometry.page_bytes == 32 * 2 * 64 * 2 * 2
    assert geometry.segment_data_bytes >= 256 * 1024


@pytest.mark.parametrize(
    ("config", "kv", "message"),
    [
        ({"decode_context_parallel_size": 2}, cache_config(spec()), "decode_context_parallel_size is 2"),
        (
            {"pipeline_parallel_size": 2, "method": "eagle"},
            cache_config(spec()),
            "'eagle' and 2 pipeline stages",
        ),
        ({}, cache_config(), "no layers with a KV cache"),
        ({}, cache_config(spec(), mamba()), r"group 1 \('layers.2' and 1 more\).*state.*MambaSpec"),
        (
            {},
            cache_config(CrossAttentionSpec(32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)),
            "encoder.*CrossAttentionSpec",
        ),
        # Whose KV depends on more than the tokens before it: what is a prompt, or what follows.
        ({}, cache_config(spec(), rswa()), r"group 1 .*\(RSWASpec\)"),
        ({}, cache_config(spec(non_causal=True)), r"group 0 .*see later ones"),
        ({}, cache_config(window(), spec(non_causal=True)), r"group 1 .*see later ones"),
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


def test_groups_come_from_vllms_own_specs(folder):
    kv = cache_config(window(), spec(), window(block_size=64, num_kv_heads=1, extra_retained_tokens=3))
    kv.kv_cache_groups[0].layer_names[:] = ["model.layers.0.attn", "model.layers.10.attn"]
    kv.kv_cache_groups[1].layer_names[:] = ["model.layers.2.attn"]
    kv.kv_cache_groups[2].layer_names[:] = ["model.layers.1.attn", "model.layers.3.attn"]
    geometry = make_geometry(server(folder), kv, 3)
    assert [group.layers for group in geometry.groups] == [(0, 4), (2,), (1, 3)]
    assert [group.block_tokens for group in geometry.groups] == [32, 32, 64]
    assert [group.window for group in geometry.groups] == [100, None, 103]
    assert geometry.chunk_tokens == 3 * 64
    assert [geometry.blocks_of(group) for group in range(3)] == [6, 6, 3]
    assert layer_names(kv) == [f"model.layers.{n}.attn" for n in (0, 1, 2, 3, 10)]


def test_what_pads_a_page_is_not_moved(folder):
    page = spec().page_size_bytes
    geometry = make_geometry(server(folder), cache_config(spec(page_size_padded=2 * page)), 2)
    assert geometry.page_bytes == page


@pytest.mark.parametrize(
    ("layers", "stages", "held", "most"), [(5, 2, 3, 3), (7, 3, 2, 3), (9, 4, 2, 3), (5, 2, 6, 6)]
)
def test_a_chunk_has_room_for_the_stage_with_most_layers(folder, layers, stages, held, most):
    # vLLM tells the scheduler of the first stage's layers; uneven rests go to later ones.
    config = server(folder, pipeline_parallel_size=stages, layers=layers)
    kv = cache_config(spec())
    kv.kv_cache_groups[0].layer_names[:] = [f"layers.{n}" for n in range(held)]
    geometry = make_geometry(config, kv, 2)
    assert geometry.num_layers >= most
    assert len(geometry.held_layers) == held


def test_a_worker_takes_the_number_of_segments_from_the_store(folder):
    geometry = make_geometry(server(folder), cache_config(spec()), 2, num_layers=5)
    assert (geometry.num_layers, geometry.held_layers) == (5, (0, 1))


def test_fp8_pages_are_half_as_large_and_a_store_of_their_own(folder):
    kv = cache_config(spec(dtype=torch.float8_e4m3fn, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR))
    assert make_geometry(server(folder), kv, 2).page_bytes * 2 == spec().page_size_bytes
    assert digest(server(folder, cache_dtype="fp8"), kv) != digest(server(folder))


def test_latents_that_all_ranks_hold_are_one_part(folder):
    latent = MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    kv = cache_config(latent, replicas=4)
    topology = read_topology(server(folder, tensor_parallel_size=4), kv)
    assert (topology.workers, topology.parts) == (4, 1)
    assert make_geometry(server(folder, tensor_parallel_size=4), kv, 2).page_bytes == 32 * 576 * 2


@pytest.mark.parametrize(
    ("ranks", "heads", "specs", "facts", "method", "copies"),
    [
        (4, 1, [spec(num_kv_heads=1)], {}, None, 4),
        (4, 2, [spec(num_kv_heads=1)], {}, None, 2),
        (4, 2, [spec(num_kv_heads=1)], {}, "ngram", 2),
        (4, 4, [spec(num_kv_heads=1)], {}, None, 1),
        (2, 4, [spec(num_kv_heads=2)], {}, None, 1),
        (4, 3, [spec(num_kv_heads=1)], {}, None, 1),
        # Layers with heads of another number, or what might be such.
        (4, 1, [spec(num_kv_heads=1), window(num_kv_heads=1)], {}, None, 1),
        (4, 1, [spec(num_kv_heads=1)], {"num_global_key_value_heads": 4}, None, 1),
        (4, 1, [spec(num_kv_heads=1)], {}, "eagle", 1),
    ],
)
def test_heads_that_several_ranks_hold_are_stored_once(folder, ranks, heads, specs, facts, method, copies):
    config = server(folder, tensor_parallel_size=ranks, method=method)
    config.model_config.get_total_num_kv_heads = lambda: heads
    config.model_config.hf_config.values |= {"num_key_value_heads": heads} | facts
    assert read_topology(config, cache_config(*specs)).replicas == copies


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
        {"pipeline_parallel_size": 2},
        {"rope": 500000.0},
        {"dtype": torch.float16},
        {"quantization": "fp8"},
        {"revision": "main"},
        {"cache_dtype": "fp8"},
        {"algorithm": "sha256_cbor"},
        {"load_format": "dummy"},
        # Positions of LongRoPE and the attention of Llama 4 depend on it.
        {"max_model_len": 131072},
        {"media": MultiModalConfig(mm_processor_kwargs={"max_pixels": 1000})},
        {"media": MultiModalConfig(media_io_kwargs={"image": {"mode": "L"}})},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_configuration_has_another_store(folder, changes):
    assert digest(server(folder, **changes)) != digest(server(folder))


def test_a_length_that_vllm_fits_to_the_memory_changes_no_name(folder):
    fitted = [
        digest(server(folder, max_model_len=length, original_max_model_len=-1)) for length in (3000, 4000)
    ]
    assert fitted[0] == fitted[1]


@pytest.mark.parametrize(
    ("media", "prefix_caching", "named"),
    [
        (None, False, True),
        (MultiModalConfig(mm_processor_cache_gb=0), True, True),
        (MultiModalConfig(mm_processor_cache_gb=4), False, True),
        (MultiModalConfig(mm_processor_cache_gb=0), False, False),
    ],
)
def test_images_have_names_unless_vllm_numbers_them(folder, media, prefix_caching, named):
    config = server(folder, media=media)
    config.cache_config.enable_prefix_caching = prefix_caching
    assert names_media_by_content(config) is named


def test_vllm_numbers_images_where_both_of_its_caches_are_off(folder):
    # From 1 in each process: what is kept over a restart would be another image's.
    def identifiers(cache_gb, prefix_caching):
        renderer = SimpleNamespace(
            model_config=SimpleNamespace(multimodal_config=MultiModalConfig(mm_processor_cache_gb=cache_gb)),
            config=SimpleNamespace(
                cache_config=SimpleNamespace(enable_prefix_caching=prefix_caching), ec_transfer_config=None
            ),
            _validate_mm_uuids=lambda *_: None,
        )
        items = SimpleNamespace(get_all_counts=lambda: {"image": 1})
        return BaseRenderer._process_mm_uuids(renderer, {"image": ["pixels"]}, items, {}, "renderer0-mm-1")

    assert identifiers(0, False) == {"image": ["renderer0-mm-1-image-0"]}
    assert identifiers(4, False) == identifiers(0, True) == {}


def test_other_bytes_in_a_page_have_another_store(folder):
    here = digest(server(folder))
    assert digest(server(folder), cache_config(spec(num_kv_heads=4, head_size=32))) != here
    assert digest(server(folder), cache_config(spec(), layout="LBNHC")) != here
    assert digest(server(folder), cache_config(window())) != here
    assert digest(server(folder), cache_config(window(sliding_window=200))) != digest(
        server(folder), cache_config(window())
    )
    assert digest(server(folder), blocks_per_chunk=4) != here
    assert digest(server(folder), vllm="0.33.0") != here
    assert digest(server(folder), checksum="d") != here


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (platform, "machine", "riscv64"),
        (torch.backends.cpu, "get_cpu_capability", "DEFAULT"),
        (torch.cpu, "_is_amx_tile_supported", not torch.cpu._is_amx_tile_supported()),
    ],
)
def test_another_processor_packs_keys_otherwise_and_has_another_store(
    folder, monkeypatch, owner, name, value
):
    here = digest(server(folder))
    monkeypatch.setattr(owner, name, lambda: value)
    assert digest(server(folder)) != here


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


def test_another_draft_model_has_another_store(folder, tmp_path):
    def with_draft(method, name):
        config = server(folder, method=method)
        draft = tmp_path / name
        if not draft.exists():
            draft.mkdir()
            (draft / "model.safetensors").write_bytes(name.encode())
        config.speculative_config.draft_model_config = SimpleNamespace(
            model=str(draft), revision=None, hf_config=HfConfig(name=name), seed=0
        )
        return digest(config)

    assert with_draft("eagle", "one") == with_draft("eagle", "one") != with_draft("eagle", "other")
    assert with_draft("ngram", "one") == with_draft("ngram", "other") == digest(server(folder))


def test_a_draft_models_layers_are_stored_after_the_models(folder):
    kv = cache_config(spec())
    kv.kv_cache_groups[0].layer_names[:] = [
        "model.layers.0.attn",
        "model.layers.1.attn",
        "draft.layers.2.attn",
    ]
    geometry = make_geometry(server(folder, method="eagle"), kv, 2)
    assert geometry.num_layers == 3 and layer_names(kv)[2] == "draft.layers.2.attn"


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
