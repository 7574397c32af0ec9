# SPDX-License-Identifier: Apache-2.0
"""The models of the differential test: one KV cache group, several, a window in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tutti_engine import Geometry
from tutti_vllm.testing.tiny_families import FAMILIES, make_tiny
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

__all__ = ["MODELS", "CampaignModel", "model_of"]

BLOCK_TOKENS = 32
BLOCKS_PER_CHUNK = 2
VOCABULARY = 512
"""Tokens that prompts are made of; every model knows them."""

_LLAMA = TinyModel(
    layers=3, hidden=128, heads=2, kv_heads=1, intermediate=256, vocabulary=VOCABULARY, max_tokens=1024
)


@dataclass(frozen=True, slots=True)
class CampaignModel:
    """A model that engines of a campaign run.

    Attributes:
        name: ``llama`` or a family of ``tiny_families``.
        layers: with a KV cache.
        kv_heads: of each layer; heads have 64 numbers of float32.
        groups: KV cache groups, which share vLLM's blocks.
    """

    name: str
    layers: int
    kv_heads: int
    groups: int = 1

    @property
    def geometry(self) -> Geometry:
        """A chunk of all layers, as if they were one group: what it takes on disk."""
        return Geometry(
            num_layers=self.layers,
            block_tokens=BLOCK_TOKENS,
            blocks_per_chunk=BLOCKS_PER_CHUNK,
            page_bytes=BLOCK_TOKENS * 2 * self.kv_heads * 64 * 4,
        )

    def make(self, folder: Path) -> Path:
        """Write the model into ``folder`` and return it."""
        if self.name in FAMILIES:
            return make_tiny(folder, self.name)
        return make_tiny_model(folder, _LLAMA)


MODELS = (
    CampaignModel("llama", _LLAMA.layers, _LLAMA.kv_heads),
    CampaignModel("llama", _LLAMA.layers, _LLAMA.kv_heads),
    CampaignModel("gemma3", layers=6, kv_heads=2, groups=3),
    CampaignModel("mistral", layers=4, kv_heads=2),
)


def model_of(seed: int) -> CampaignModel:
    """Return the model of a campaign; neighbouring seeds take turns."""
    return MODELS[seed % len(MODELS)]
