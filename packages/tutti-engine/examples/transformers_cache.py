# SPDX-License-Identifier: Apache-2.0
"""A toy inference server on Hugging Face transformers that keeps its KV cache in Tutti.

    pip install 'tutti-engine' torch transformers
    python transformers_cache.py

A tiny model with random weights computes a prompt, keeps its KV cache through ``TuttiEngine`` and forgets
it. The same prompt is then answered with what was kept, and the logits are the same to the last bit. A real
server would give the engine its own paged cache and a backend on disk; here pages are plain buffers and the
backend is memory.
"""

from __future__ import annotations

import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tutti_engine import ChunkKey, Geometry, TuttiEngine, make_backend
from tutti_engine.chunk_key import keys_from_tokens
from tutti_engine.movers.plain import PlainMover

BLOCK_TOKENS = 16
CHUNK_BLOCKS = 4
NUM_BLOCKS = 64
NUM_CHUNKS = 32


def make_model() -> LlamaForCausalLM:
    """Return a model of a few layers with random weights, always the same."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    return LlamaForCausalLM(config).eval()


class ToyServer:
    """Answers prompts, reusing the longest prefix that is kept."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        config = model.config
        self.model = model
        # One page: keys and values of one block in one layer, as [2, heads, tokens, head_dim].
        self.page_shape = (2, config.num_key_value_heads, BLOCK_TOKENS, config.head_dim)
        self.pages = [
            torch.zeros(NUM_BLOCKS, *self.page_shape, dtype=model.dtype)
            for _ in range(config.num_hidden_layers)
        ]
        page_bytes = self.pages[0][0].nbytes
        geometry = Geometry(config.num_hidden_layers, BLOCK_TOKENS, CHUNK_BLOCKS, page_bytes)
        backend = make_backend(
            "memory",
            num_layers=geometry.num_layers,
            segment_bytes=geometry.segment_bytes,
            num_chunks=NUM_CHUNKS,
        )
        self.engine = TuttiEngine(geometry, chunk_ids=backend.chunk_ids(NUM_CHUNKS), backend=backend)
        self.engine.bind(PlainMover(geometry, [memoryview(page.numpy()).cast("B") for page in self.pages]))
        self.free_blocks = list(range(NUM_BLOCKS))

    @torch.no_grad()
    def answer(self, prompt: list[int]) -> tuple[torch.Tensor, int]:
        """Return the logits of the prompt's last token, and how many tokens were not computed."""
        chunk_tokens = self.engine.geometry.chunk_tokens
        keys = keys_from_tokens(prompt[:-1], chunk_tokens)  # something is left to compute
        blocks = [tuple(self.free_blocks.pop() for _ in range(CHUNK_BLOCKS)) for _ in keys]
        reused = self.load(keys, blocks)
        cache = DynamicCache()
        for layer, pages in enumerate(self.pages if reused else ()):
            table = [block for chunk in blocks[: reused // chunk_tokens] for block in chunk]
            # [blocks, 2, heads, block_tokens, dim] -> two times [1, heads, tokens, dim]
            keys_values = pages[table].permute(1, 2, 0, 3, 4).flatten(2, 3)
            cache.update(keys_values[0][None], keys_values[1][None], layer)
        # Chunk by chunk, so that what is computed does not depend on how much is reused.
        logits = torch.empty(0)
        for start in range(reused, len(prompt), chunk_tokens):
            tokens = torch.tensor([prompt[start : start + chunk_tokens]])
            logits = self.model(tokens, past_key_values=cache, use_cache=True).logits[0, -1]
        self.store(keys, blocks, cache)
        self.free_blocks += [block for chunk in blocks for block in chunk]
        return logits, reused

    def load(self, keys: list[ChunkKey], blocks: list[tuple[int, ...]]) -> int:
        """Bring the longest kept prefix into pages; return its tokens."""
        engine = self.engine
        chunks = engine.lookup_prefix(keys) // engine.geometry.chunk_tokens
        if chunks == 0:
            return 0
        plan = engine.plan_load([(key, (table,)) for key, table in zip(keys[:chunks], blocks)])
        engine.load(plan)
        engine.wait_idle(time.monotonic() + 30)
        failed = {position for result in engine.settle() for position in getattr(result, "failed", ())}
        # What did not arrive, and all that builds on it, is computed again.
        return min(failed, default=chunks) * engine.geometry.chunk_tokens

    def store(self, keys: list[ChunkKey], blocks: list[tuple[int, ...]], cache: DynamicCache) -> None:
        """Keep what is not kept yet."""
        chunk_tokens = self.engine.geometry.chunk_tokens
        for layer, pages in enumerate(self.pages):
            both = torch.stack([cache.layers[layer].keys[0], cache.layers[layer].values[0]])
            for number, table in enumerate(blocks):
                part = both[:, :, number * chunk_tokens : (number + 1) * chunk_tokens]
                for index, block in enumerate(table):
                    pages[block] = part[:, :, index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
        plan = self.engine.plan_store([(key, (table,)) for key, table in zip(keys, blocks)])
        if plan is not None:
            self.engine.store(plan)
            self.engine.wait_idle(time.monotonic() + 30)
            self.engine.settle()

    def forget_pages(self) -> None:
        """Overwrite the paged cache: what is reused afterwards comes out of the engine."""
        for pages in self.pages:
            pages.fill_(float("nan"))


def main() -> None:
    """Answer the same prompt twice, and one that shares its beginning."""
    server = ToyServer(make_model())
    prompt = [(7 * i) % 251 for i in range(200)]
    first, reused = server.answer(prompt)
    print(f"first time:  {reused} of {len(prompt)} tokens reused")
    server.forget_pages()
    again, reused = server.answer(prompt)
    print(f"second time: {reused} of {len(prompt)} tokens reused, same logits: {torch.equal(first, again)}")
    _, reused = server.answer([*prompt[:150], 1, 2, 3])
    print(f"another end: {reused} of 153 tokens reused")
    server.engine.shutdown()


if __name__ == "__main__":
    main()
