# SPDX-License-Identifier: Apache-2.0
"""Packing and unpacking all layers, beside LMCache's kernels in the same run.

``python benchmarks/gpu_peer.py`` needs LMCache's compiled extension (``lmcache.cuda_ops``; 0.5.6 was tried).
Pages are ``[blocks, 2, 16, 8, 128]`` of bf16 a layer, 32 layers; the peer's buffer is ``[2, layers, tokens,
heads x size]`` in device memory, ours a slot a layer and 256 tokens. One launch each; both are compared with
plain indexing first. Medians of rounds in which the methods take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_timing import alternating_us

import tutti_kv_kernels as tk
from tutti_kv_kernels.device import DeviceTransfer, Verify

LAYERS, BLOCK, HEADS, SIZE, CHUNK = 32, 16, 8, 128, 256
PAGE = 2 * BLOCK * HEADS * SIZE * 2


def compare(tokens: int, pool: int) -> dict[str, Any]:
    """Microseconds of each method for some tokens, out of a pool of blocks."""
    import lmcache.cuda_ops as peer
    import lmcache.lmcache_native as native

    to_host, to_pages = native.TransferDirection.D2H, native.TransferDirection.H2D
    form = native.EngineKVFormat.NL_X_NB_TWO_BS_NH_HS
    pages = [
        torch.randint(-(2**15), 2**15, (pool, 2, BLOCK, HEADS, SIZE), dtype=torch.int16, device="cuda")
        for _ in range(LAYERS)
    ]
    pointers = torch.tensor([layer.data_ptr() for layer in pages], dtype=torch.int64, device="cuda")
    blocks = torch.randperm(pool, device="cuda")[: tokens // BLOCK]
    places = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()
    buffer = torch.zeros((2, LAYERS, tokens, HEADS * SIZE), dtype=torch.bfloat16, device="cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    rest = (BLOCK, SIZE, 0, 0)

    def move(direction: Any) -> None:
        peer.multi_layer_kv_transfer(buffer, pointers, places, device, pool * BLOCK, direction, form, *rest)

    chunks, slot = tokens // CHUNK, CHUNK // BLOCK * PAGE
    window = torch.zeros(LAYERS * chunks * slot, dtype=torch.uint8, device="cuda")
    storages = [layer.view(-1).view(torch.uint8) for layer in pages]
    cache = tk.PagedCache(storages, [[tk.Plane(i, 0, PAGE, pool, PAGE)] for i in range(LAYERS)])
    transfer = DeviceTransfer(cache, window, slot)
    ids = blocks.view(chunks, -1).repeat(LAYERS, 1)
    slots = torch.arange(LAYERS * chunks, device="cuda")
    layers = torch.arange(LAYERS, device="cuda").repeat_interleave(chunks)
    sums, status = torch.zeros_like(slots), torch.zeros_like(slots, dtype=torch.int32)

    move(to_host)
    transfer.gather(ids, slots, layers=layers, checksums=sums)
    torch.cuda.synchronize()
    for i, layer in enumerate(pages):
        expected = layer[blocks]
        mine = window.view(LAYERS, -1)[i].view(torch.int16).view(expected.shape)
        theirs = buffer[:, i].view(torch.int16).view(2, -1, BLOCK, HEADS, SIZE).transpose(0, 1)
        if not mine.equal(expected) or not theirs.equal(expected):
            raise RuntimeError(f"layer {i}: mine {mine.equal(expected)}, theirs {theirs.equal(expected)}")
    fused = {"checksums": sums, "status": status, "verify": Verify.FUSED}
    us = alternating_us(
        {
            "peer, gather": lambda: move(to_host),
            "gather": lambda: transfer.gather(ids, slots, layers=layers),
            "gather, checksum": lambda: transfer.gather(ids, slots, layers=layers, checksums=sums),
            "peer, scatter": lambda: move(to_pages),
            "scatter": lambda: transfer.scatter(ids, slots, layers=layers, verify=Verify.NONE),
            "scatter, checksum": lambda: transfer.scatter(ids, slots, layers=layers, **fused),
        },
        repeats=4,
    )
    return {"tokens": tokens, "bytes": tokens // BLOCK * PAGE * LAYERS, "us": us}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048, 8192])
    parser.add_argument("--blocks", type=int, default=2048, help="blocks of each layer's pool")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [compare(tokens, options.blocks) for tokens in options.tokens]
    print("| tokens | MiB | " + " | ".join(rows[0]["us"]) + " |")
    print("| ---: | ---: |" + " ---: |" * len(rows[0]["us"]))
    for row in rows:
        cells = " | ".join(f"{us:.0f} us" for us in row["us"].values())
        print(f"| {row['tokens']:,} | {row['bytes'] >> 20} | {cells} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
