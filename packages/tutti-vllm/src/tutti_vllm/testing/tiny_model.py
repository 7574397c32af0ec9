# SPDX-License-Identifier: Apache-2.0
"""Makes a small Llama-like model with fixed random weights: real engines run without a download."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["TinyModel", "make_tiny_model"]


@dataclass(frozen=True)
class TinyModel:
    """Shape of the model. Heads of 64 are what vLLM's CPU attention accepts; KV is float32.

    Float32 keeps the rounding of differently shaped batches far below the distance between the best tokens,
    so that greedy tokens of two runs can be compared one by one.
    """

    layers: int = 12
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    intermediate: int = 1536
    vocabulary: int = 2048
    max_tokens: int = 16384
    seed: int = 20260601

    @property
    def head_size(self) -> int:
        """Numbers of one attention head."""
        return self.hidden // self.heads


def make_tiny_model(folder: Path, model: TinyModel = TinyModel()) -> Path:
    """Write the model into ``folder`` unless it is there already; return the folder."""
    marker = folder / "tiny-model.json"
    wanted = json.dumps(asdict(model), sort_keys=True)
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(model), indent=2), encoding="utf-8")
    _write_weights(folder / "model.safetensors", model)
    marker.write_text(wanted, encoding="utf-8")
    return folder


def _config(model: TinyModel) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "num_hidden_layers": model.layers,
        "max_position_embeddings": model.max_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write_weights(path: Path, model: TinyModel) -> None:
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(model.seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        # Large enough a spread that the best token stands out.
        return torch.randn(rows, columns, generator=random) / columns**0.5 * 1.4

    kv_size = model.kv_heads * model.head_size
    weights = {
        "model.embed_tokens.weight": matrix(model.vocabulary, model.hidden),
        "model.norm.weight": torch.ones(model.hidden),
        "lm_head.weight": matrix(model.vocabulary, model.hidden),
    }
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": torch.ones(model.hidden),
            prefix + "post_attention_layernorm.weight": torch.ones(model.hidden),
            prefix + "self_attn.q_proj.weight": matrix(model.hidden, model.hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv_size, model.hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv_size, model.hidden),
            prefix + "self_attn.o_proj.weight": matrix(model.hidden, model.hidden),
            prefix + "mlp.gate_proj.weight": matrix(model.intermediate, model.hidden),
            prefix + "mlp.up_proj.weight": matrix(model.intermediate, model.hidden),
            prefix + "mlp.down_proj.weight": matrix(model.hidden, model.intermediate),
        }
    save_file(weights, str(path), metadata={"format": "pt"})
