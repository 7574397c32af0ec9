# SPDX-License-Identifier: Apache-2.0
"""Small models with fixed random weights of families whose KV cache differs from Llama's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "make_tiny"]

VOCABULARY = 1024
MAX_TOKENS = 4096

FAMILIES: dict[str, dict[str, Any]] = {
    # Sliding windows and full attention by turns: three cache groups for six layers.
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 100,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    },
    # A window in every layer: one group that never needs a whole prefix.
    "mistral": {
        "model_type": "mistral",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": 100,
    },
    # One latent a token instead of keys and values of several heads.
    "deepseek": {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
    },
    "qwen3": {
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
    },
    # The first layer keeps the end of a convolution instead of keys and values.
    "lfm2": {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
        "conv_dim": 256,
        "block_dim": 256,
        "block_multiple_of": 256,
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,
    },
}
"""What each family's configuration says beside what all have in common."""


def make_tiny(folder: Path, family: str, seed: int = 20261130) -> Path:
    """Write a model of a family into ``folder`` and return it. Raises KeyError for an unknown family."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = FAMILIES[family] | {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": False,
        # A spread that is large enough for the best token to stand out.
        "initializer_range": 0.08,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**facts)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
