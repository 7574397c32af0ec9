# SPDX-License-Identifier: Apache-2.0
"""Models of several families on GPUs: alone, with Tutti, and with Tutti after a restart; answers compared.

    python packages/tutti-vllm/benchmarks/serving_gpu/families.py --folder /dev/shm --json result.json
    ... --families "llama, two GPUs" --devices 0,1

Prompts are asked one at a time, so every engine computes the same batches: greedy answers of an engine that
computes a prompt must be those of vLLM alone, and those of an engine that loads it, too. Then all prompts
are asked at once, each with a new question at its end, as a second turn of a conversation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fleet import prompts, say
from systems import SHAPE_8B, engines

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, dict[str, Any]] = {
    # Tensor parallel: each rank has its own device, window and part of the store.
    "llama, two GPUs": {
        "config": SHAPE_8B,
        "options": {
            "tensor_parallel_size": 2,
            "disable_custom_all_reduce": True,
            "attention_config": {"backend": "FLASH_ATTN"},
        },
    },
    # Five layers with a sliding window to one without: Gemma-3-4B's published shape.
    "gemma, sliding windows": {
        "config": {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 1024,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5 + ["sliding_attention"] * 4,
            "vocab_size": 131072,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "options": {"attention_config": {"backend": "FLASH_ATTN"}},
    },
    # One latent a token: DeepSeek-V2-Lite's published shape, all layers dense.
    "deepseek, latent": {
        "config": {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 27,
            "vocab_size": 131072,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "options": {"attention_config": {"backend": "TRITON_MLA"}},
    },
}

STORE_SECONDS = 15.0
"""Longest wait for a store's first bytes."""


class Family:
    """The engines of one family."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.number = list(FAMILIES).index(name)
        self.model, self.root = folder / f"model-{name}", folder / f"store-{name}"
        self.model.mkdir()
        self.root.mkdir()
        (self.model / "config.json").write_text(json.dumps(FAMILIES[name]["config"]), encoding="utf-8")
        self.running: dict[str, engines.EngineProcess] = {}
        self.found: dict[str, Any] = {}

    def start(self, label: str) -> None:
        """Start an engine: "alone", "computing" or "restarted"."""
        connector = None if label == "alone" else engines.tutti(self.root, self.options.capacity)
        settings: dict[str, Any] = {
            "dtype": "bfloat16",
            "block_size": 16,
            "max_model_len": max(self.options.lengths) + 512,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 16,
            "gpu_memory_utilization": self.options.memory,
            "kv_cache_memory_bytes": self.options.kv_bytes,
            "load_format": "dummy",
            "enforce_eager": self.options.eager,
            # Without graphs plain operators do: nothing of a trimmed build can be missing.
            "compilation_config": {"custom_ops": ["none"]}
            if self.options.eager
            else {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]},
            "seed": 0,
        }
        own = FAMILIES[self.name]["options"]
        devices = self.options.devices.split(",")
        count = own.get("tensor_parallel_size", 1)
        # Those of one GPU take turns with the devices, from the last one on.
        chosen = devices[:count] if count > 1 else [devices[-self.number % len(devices)]]
        self.running[label] = engines.EngineProcess(
            self.model,
            connector,
            environment={
                "CUDA_VISIBLE_DEVICES": ",".join(chosen),
                "NCCL_NVLS_ENABLE": "0",
                "VLLM_LOGGING_LEVEL": "INFO",
            },
            **(settings | own),
        )

    def ask(self, label: str) -> None:
        """Ask an engine for all prompts, and for their second turns."""
        engine = self.running.get(label)
        if engine is None:
            return
        first = prompts(self.options.lengths, 1)
        second = [prompt + question for prompt, question in zip(first, prompts([40] * 9, 2), strict=False)]
        try:
            one = engine.ask(first, self.options.answer, at_once=False, timeout=self.options.patience)
            if label == "computing":
                self._await_store()
            engines.wait_for_quiet(self.root)
            engine.forget()
            turn = engine.ask(second, 4, at_once=True, timeout=self.options.patience)
            engines.wait_for_quiet(self.root)
        except (RuntimeError, OSError) as error:
            self.found[label] = {"error": str(error)[-4000:], "log": engine.said()[-40:]}
            say(f"{self.name}, {label}: {error}")
            return
        self.found[label] = {
            "seconds": one.first_token_seconds,
            "hits": one.hit_tokens,
            "tokens": one.tokens,
            "second turn": {"hits": turn.hit_tokens, "seconds": turn.seconds},
            "log": engine.said()[-40:],
        }
        times = ", ".join(f"{each * 1e3:.0f}" for each in one.first_token_seconds)
        say(f"{self.name}, {label}: {times} ms, hits {one.hit_tokens}, second turn {turn.hit_tokens}")

    def _await_store(self) -> None:
        """Wait until the store's first bytes are written, some seconds at most: then it can grow quiet."""
        deadline = time.monotonic() + STORE_SECONDS
        # Its catalogue and its empty files are there from the start.
        while engines.occupied(self.root) < self.options.least_bytes and time.monotonic() < deadline:
            time.sleep(0.1)

    def stop(self, *labels: str) -> None:
        """End engines."""
        for label in labels:
            if label in self.running:
                self.running.pop(label).close()

    def verdict(self) -> str:
        """One line of the table."""
        errors = [label for label, entry in self.found.items() if "error" in entry]
        missing = [label for label in ("alone", "computing", "restarted") if label not in self.found]
        if errors or missing:
            return f"| {self.name} | did not run: {', '.join([*errors, *missing])} | | | |"
        tokens = {label: entry["tokens"] for label, entry in self.found.items()}
        same = [tokens["alone"] == tokens[label] for label in ("computing", "restarted")]
        times = [
            " / ".join(f"{each * 1e3:,.0f}" for each in self.found[label]["seconds"])
            for label in ("alone", "restarted")
        ]
        answers = "same" if all(same) else f"computing {same[0]}, restarted {same[1]}"
        hits = f"{sum(self.found['restarted']['hits']):,} of {sum(self.options.lengths):,}"
        return f"| {self.name} | {times[0]} | {times[1]} | {hits} | {answers} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--devices", default="0", help="families of one GPU take turns with them")
    parser.add_argument("--lengths", type=int, nargs="+", default=[3000, 8000, 20000])
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--capacity", type=int, default=20 << 30, help="bytes of a store")
    parser.add_argument("--memory", type=float, default=0.05, help="vLLM's gpu_memory_utilization, of each")
    parser.add_argument("--kv-bytes", type=int, default=10 << 30, help="HBM of each engine's KV cache")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for an answer or a start")
    parser.add_argument("--least-bytes", type=int, default=64 << 20, help="what a store surely takes")
    parser.add_argument("--eager", action="store_true", help="without graphs: starts are shorter")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-families-", dir=options.folder) as folder:
        families = [Family(name, Path(folder), options) for name in options.families]
        try:
            for labels in (("alone", "computing"), ("restarted",)):
                for family in families:
                    for label in labels:
                        family.start(label)
                for family in families:
                    for label in labels:
                        family.ask(label)
                        save(families, options.json)
                    family.stop(*labels)
                say(f"-- {' and '.join(labels)} after {time.monotonic() - begin:.0f} s")
        finally:
            # First, as engines may take long to end.
            save(families, options.json)
            print("| model | alone, ms | restarted, ms | hit tokens | answers |")
            print("| --- | ---: | ---: | ---: | --- |")
            print("\n".join(family.verdict() for family in families), flush=True)
            for family in families:
                family.stop(*list(family.running))
    return 0


def save(families: list[Family], path: Path | None) -> None:
    """Write what was found so far."""
    if path is not None:
        result = {family.name: family.found for family in families}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
