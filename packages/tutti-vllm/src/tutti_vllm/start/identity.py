# SPDX-License-Identifier: Apache-2.0
"""Everything that must be equal for stored KV to be usable: reads vLLM's configuration.

When in doubt a fact is included: a store that is not found costs a computation, a wrong one costs a wrong
token.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from tutti_engine import Geometry
from tutti_engine.namespace import Namespace
from tutti_vllm.start.cache_groups import read_groups
from tutti_vllm.start.topology import has_draft_model, read_topology
from tutti_vllm.start.unsupported import UnsupportedError

__all__ = ["UnsupportedError", "config_digest", "make_geometry", "make_namespace", "names_media_by_content"]

_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


def make_geometry(
    vllm_config: Any, kv_cache_config: Any, blocks_per_chunk: int, num_layers: int | None = None
) -> Geometry:
    """Return the shape of a chunk. Raises UnsupportedError that names what does not fit.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: the resolved KV cache: groups, page sizes, hash block size.
        blocks_per_chunk: the user's wish, 0 for the automatic choice.
        num_layers: segments of a chunk, where the store is known; else worked out, on the scheduler's side.
    """
    from vllm.platforms import current_platform

    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise UnsupportedError(
            f"the KV cache lies on {current_platform.device_type}; this release moves pages on CPUs and CUDA"
            " devices only"
        )
    topology = read_topology(vllm_config, kv_cache_config)
    groups = read_groups(kv_cache_config)
    held = sum(len(group.layers) for group in groups)
    geometry = Geometry.of_groups(
        groups,
        blocks_per_chunk=blocks_per_chunk,
        num_layers=topology.most_layers(held) if num_layers is None else num_layers,
    )
    hash_tokens = kv_cache_config.hash_block_size or geometry.block_tokens
    if geometry.chunk_tokens % hash_tokens:
        raise UnsupportedError(
            f"a chunk of {geometry.chunk_tokens} tokens is no whole number of hash blocks of {hash_tokens}"
        )
    return geometry


def make_namespace(
    vllm_config: Any, kv_cache_config: Any, geometry: Geometry, checksum_name: str, vllm_version: str
) -> Namespace:
    """Return the namespace of this server's KV.

    Raises UnsupportedError for block hashes that change every start.
    """
    model = vllm_config.model_config
    topology = read_topology(vllm_config, kv_cache_config)
    groups = kv_cache_config.kv_cache_groups
    return Namespace(
        {
            "model": str(model.model),
            "revision": model.revision,
            "weights": _weights(vllm_config, model),
            "draft": _draft(vllm_config),
            "hf_config": _digest_json(model.hf_config.to_dict()),
            "max_tokens": _max_tokens(model),
            "media": _media(model),
            "dtype": str(model.dtype),
            "quantization": model.quantization,
            "kv_specs": [repr(group.kv_cache_spec) for group in groups],
            "kv_cache_dtype": str(vllm_config.cache_config.cache_dtype),
            "kv_cache_layout": kv_cache_config.kv_cache_layout,
            "layers": [list(group.layer_names) for group in groups],
            "num_layers": geometry.num_layers,
            "page_bytes": [group.page_bytes for group in geometry.groups],
            "block_tokens": geometry.block_tokens,
            "blocks_per_chunk": geometry.blocks_per_chunk,
            "tensor_parallel_size": topology.tensor_ranks,
            "pipeline_stages": list(topology.stages),
            "kv_replicas": topology.replicas,
            "block_hash": _block_hash(vllm_config, kv_cache_config, geometry),
            "checksum": checksum_name,
            "platform": _platform(),
            "vllm": vllm_version,
        }
        | _adapters(vllm_config)
    )


def config_digest(vllm_config: Any) -> str:
    """Return what tells the model's configuration from others, wherever its files lie."""
    return _digest_json(_without_place(vllm_config.model_config.hf_config.to_dict()))


def _without_place(value: Any) -> Any:
    """Leave out the folder or name that a configuration was read from, also of its parts."""
    if isinstance(value, dict):
        return {name: _without_place(each) for name, each in value.items() if name != "_name_or_path"}
    return [_without_place(each) for each in value] if isinstance(value, (list, tuple)) else value


def _adapters(vllm_config: Any) -> dict[str, Any]:
    """Return how LoRA adapters are computed, where a server has any; which one it is is part of each key."""
    config = getattr(vllm_config, "lora_config", None)
    if config is None:
        return {}
    names = ("lora_dtype", "fully_sharded_loras")
    return {"lora": {name: str(getattr(config, name, None)) for name in names}}


def _block_hash(vllm_config: Any, kv_cache_config: Any, geometry: Geometry) -> dict[str, Any]:
    name = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if not name.startswith("sha256"):
        raise UnsupportedError(
            f"prefix_caching_hash_algo is {name!r}, whose block hashes may collide or differ at every start; "
            "use 'sha256' or 'sha256_cbor'"
        )
    seed = os.environ.get("PYTHONHASHSEED")
    if seed == "random":
        raise UnsupportedError(
            "PYTHONHASHSEED is 'random', so no prompt would be found again after a restart; unset it"
        )
    return {
        "algorithm": name,
        "seed": seed,
        "tokens": kv_cache_config.hash_block_size or geometry.block_tokens,
    }


def _max_tokens(model: Any) -> int | str | None:
    """Return the longest sequence: positions (LongRoPE) and attention (Llama 4) of some models depend on it.

    Where vLLM fits it to the memory at each start, models are built for what was asked.
    """
    asked = getattr(model, "original_max_model_len", None)
    return "auto" if asked == -1 else getattr(model, "max_model_len", None)


def _media(model: Any) -> str | None:
    """Return what changes an image between its bytes, which vLLM's block hashes know, and its tokens."""
    config = getattr(model, "multimodal_config", None)
    if config is None:
        return None
    names = ("media_io_kwargs", "mm_processor_kwargs")
    return _digest_json({name: getattr(config, name, None) or {} for name in names})


def names_media_by_content(vllm_config: Any) -> bool:
    """Return whether vLLM's block hashes tell one image or sound from another, also after a restart.

    Where neither its processor's nor its prefix cache is on, vLLM saves itself the look at their bytes and
    numbers them, from 1 at each start.
    """
    config = getattr(vllm_config.model_config, "multimodal_config", None)
    if config is None or vllm_config.cache_config.enable_prefix_caching:
        return True
    return bool(getattr(config, "mm_processor_cache_gb", 0))


def _platform() -> dict[str, Any]:
    """CPU attention packs keys by instruction set, GPU backends by compute capability."""
    import torch
    from vllm.platforms import current_platform

    facts: dict[str, Any] = {"device": str(current_platform.device_type)}
    if current_platform.is_cpu():
        facts["machine"] = platform.machine()
        facts["cpu"] = torch.backends.cpu.get_cpu_capability()
        # As vLLM asks it: the kernel's own list may leave out what the processor says.
        facts["amx"] = bool(torch.cpu._is_amx_tile_supported())
    else:
        facts["capability"] = str(current_platform.get_device_capability())
    return facts


def _draft(vllm_config: Any) -> Any:
    """Return what tells a draft model from others; None where drafts have no KV of their own.

    Its layers are stored beside the model's. What it keeps of a chunk's last token depends on the token after
    it, which may be another one for who loads the chunk: that costs a draft now and then, and no answer, as
    the model itself judges every draft.
    """
    if not has_draft_model(vllm_config):
        return None
    speculative = vllm_config.speculative_config
    model = getattr(speculative, "draft_model_config", None)
    facts = {"method": speculative.method}
    if model is None:
        return facts
    return facts | {
        "model": str(model.model),
        "revision": model.revision,
        "hf_config": _digest_json(model.hf_config.to_dict()),
        "weights": _weights(vllm_config, model),
    }


def _weights(vllm_config: Any, model: Any) -> Any:
    """Return what tells a model's weights from others of the same name.

    Raises UnsupportedError if nothing does.
    """
    if str(vllm_config.load_config.load_format) == "dummy":
        return {"dummy_seed": model.seed}
    place = Path(str(model.model))
    files = [place] if place.is_file() else sorted(place.iterdir()) if place.is_dir() else []
    weights = []
    for path in files:
        if path.suffix in _WEIGHT_SUFFIXES and path.is_file():
            facts = path.stat()
            weights.append([path.name, facts.st_size, facts.st_mtime_ns])
    if weights:
        return {"files": weights}
    commit = None if place.exists() else _cached_commit(str(model.model), model.revision)
    if commit is None:
        raise UnsupportedError(
            f"nothing tells the weights of {model.model} from later ones of the same name: "
            "give a local folder or a model of the Hugging Face hub"
        )
    return {"commit": commit}


def _cached_commit(name: str, revision: str | None) -> str | None:
    """Return the commit of a model in the hub's local cache; its snapshot folder is named by it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        # Not a name of the hub: an object store's URL, a quantised variant.
        return None
    return Path(found).parent.name if isinstance(found, str) else None


def _digest_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
