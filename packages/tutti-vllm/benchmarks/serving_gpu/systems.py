# SPDX-License-Identifier: Apache-2.0
"""What is compared on a GPU: vLLM alone, Tutti, and vLLM's own tiers, with a model of an 8B one's shape."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "serving_cpu"))
import engines

__all__ = ["SHAPE_8B", "SYSTEMS", "Place", "connector", "engine_options"]

SHAPE_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""The shape of Llama-3.1-8B, as its published configuration gives it."""

SYSTEMS = ("alone", "tutti", "host", "fs")
"""vLLM alone; with Tutti; with vLLM's OffloadingConnector in host memory; with its file-system tier."""

CHUNK_BLOCKS = 16
"""Blocks of the peers' chunks: 256 tokens."""


@dataclass(frozen=True)
class Place:
    """Where stores are, and what each system may take.

    Attributes:
        folder: stores and the model's configuration are made in it.
        capacity: bytes of Tutti's store.
        host_bytes: host memory of the peers' first tier.
        settings: more settings of Tutti.
        drive: a directory on a drive, for a store that is slower than computing.
    """

    folder: Path
    capacity: int
    host_bytes: int
    settings: dict[str, Any]
    drive: Path | None = None

    def root(self, system: str) -> Path:
        """The directory of a system's store; it is there afterwards."""
        path = (self.drive if system == "drive" and self.drive else self.folder) / system
        path.mkdir(exist_ok=True)
        return path

    def model(self) -> Path:
        """The directory of the model, which has no weights: they are made at random."""
        path = self.folder / "model"
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(SHAPE_8B), encoding="utf-8")
        return path


def connector(system: str, place: Place) -> dict[str, Any] | None:
    """Return a system's ``kv_transfer_config``."""
    if system == "alone":
        return None
    if system == "nothing":
        return {
            "kv_connector": "NothingConnector",
            "kv_connector_module_path": "nothing_connector",
            "kv_role": "kv_both",
        }
    if system == "tutti, no stores":
        # Prompts that nobody repeats are looked up, and never stored.
        return engines.tutti(place.root(system), place.capacity, admission="second_sight")
    if system == "drive":
        return engines.tutti(place.root(system), place.capacity)
    if system.startswith("tutti"):
        layerwise = {"load_mode": "layerwise"} if system == "tutti layer-wise" else {}
        return engines.tutti(place.root("tutti"), place.capacity, **(place.settings | layerwise))
    extra: dict[str, Any] = {"cpu_bytes_to_use": place.host_bytes, "blocks_per_chunk": CHUNK_BLOCKS}
    if system == "fs":
        tier = {"type": "fs", "root_dir": str(place.root("fs"))}
        extra |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def engine_options(system: str, longest: int, memory: float, kv_bytes: int) -> dict[str, Any]:
    """Return vLLM's own settings, the same for all systems but for what layer-wise loads need."""
    compilation: dict[str, Any] = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]}
    more: dict[str, Any] = {}
    if system == "tutti layer-wise":
        compilation["cudagraph_mode"] = "PIECEWISE"
        more["async_scheduling"] = False
    return {
        "dtype": "bfloat16",
        "block_size": 16,
        "max_model_len": longest + 512,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 16,
        "gpu_memory_utilization": memory,
        # Engines start beside each other, so none may measure what memory is free.
        "kv_cache_memory_bytes": kv_bytes,
        "load_format": "dummy",
        "enforce_eager": False,
        "attention_config": {"backend": "FLASH_ATTN"},
        "compilation_config": compilation,
        "seed": 0,
    } | more
