# SPDX-License-Identifier: Apache-2.0
"""Chunk keys: digests of everything up to a chunk's end."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import cast

from tutti_engine.plan import ChunkKey

__all__ = ["KEY_BYTES", "keys_from_block_hashes", "keys_from_tokens"]

KEY_BYTES = 16
"""Length of a key that ``keys_from_tokens`` makes: 128 bits, BLAKE2b."""


def keys_from_tokens(
    token_ids: Sequence[int], chunk_tokens: int, *, parent: bytes = b"", extra: bytes = b""
) -> list[ChunkKey]:
    """Return a key for every whole chunk of a prompt, each chained to the one before.

    For servers that have no block hashes of their own.

    Args:
        token_ids: the prompt; a last part shorter than a chunk is left out.
        chunk_tokens: tokens of one chunk.
        parent: key of the chunk before the first one, empty at the start of a prompt.
        extra: whatever else tells prompts apart (adapter, image digests, tenant's salt).
    """
    keys: list[ChunkKey] = []
    for start in range(0, len(token_ids) - chunk_tokens + 1, chunk_tokens):
        digest = hashlib.blake2b(digest_size=KEY_BYTES)
        # Lengths first and tokens at a fixed width: (1, 2) and (12,) must not look alike.
        digest.update(struct.pack("<QQ", len(parent), len(extra)))
        digest.update(parent)
        digest.update(extra)
        digest.update(struct.pack(f"<{chunk_tokens}q", *token_ids[start : start + chunk_tokens]))
        parent = digest.digest()
        keys.append(ChunkKey(parent))
    return keys


def keys_from_block_hashes(
    block_hashes: Sequence[bytes], hashes_per_chunk: int, *, start: int = 0, stop: int | None = None
) -> list[ChunkKey]:
    """Return the keys of chunks ``start`` to ``stop`` from a server's chained block hashes.

    The hash of a chunk's last block already stands for the whole prefix.

    Args:
        block_hashes: one chained hash a block, in token order.
        hashes_per_chunk: hashes that one chunk spans.
        start: first chunk.
        stop: first chunk that is left out; by default all whole chunks are taken.
    """
    whole = len(block_hashes) // hashes_per_chunk
    stop = whole if stop is None else min(stop, whole)
    first = (start + 1) * hashes_per_chunk - 1
    last = block_hashes[first : stop * hashes_per_chunk : hashes_per_chunk]
    # A long prompt has thousands, and a scheduler that waits.
    if isinstance(last, list) and set(map(type, last)) <= {bytes}:
        return cast("list[ChunkKey]", last)
    return [ChunkKey(bytes(each)) for each in last]
