# SPDX-License-Identifier: Apache-2.0
"""Time to first token on a GPU: computed anew, from HBM, from Tutti after a restart, from vLLM's own tiers.

    python packages/tutti-vllm/benchmarks/serving_gpu/first_token.py --folder /dev/shm --json result.json

A model of the shape of an 8B one with random weights; prompts of several lengths, one at a time. Each engine
is a process of its own and warms up with other prompts of the same lengths:

- vLLM alone computes the prompts ("recomputed"), and gets them again ("from HBM");
- with Tutti they are computed and stored ("first time"); a new engine gets them from the store ("restarted");
- vLLM's OffloadingConnector computes and keeps them in host memory; they are asked for again when vLLM's own
  prefix cache has been emptied ("host memory"); with its file-system tier, by a new engine ("fs tier").

The stores are below ``--folder``. Greedy answers of all of them are compared.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "serving_cpu"))
import engines

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

CHUNK_BLOCKS = 16
"""Blocks of the peers' chunks: 256 tokens."""

SYSTEMS = ("alone", "tutti", "host", "fs")


class Bench:
    """The prompts, and what came of them."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(SHAPE_8B))
        self.seconds: dict[str, list[list[float]]] = {}
        self.hits: dict[str, list[int]] = {}
        self.tokens: dict[str, list[list[int]]] = {}

    def prompts(self, seed: int) -> list[list[int]]:
        """One prompt of each length."""
        chance = random.Random(seed)
        return [[chance.randrange(10, 128000) for _ in range(count)] for count in self.options.lengths]

    def engine(self, connector: dict[str, Any] | None) -> engines.EngineProcess:
        """Start an engine."""
        longest = max(self.options.lengths)
        return engines.EngineProcess(
            self.model,
            connector,
            dtype="bfloat16",
            block_size=16,
            max_model_len=longest + 64,
            max_num_batched_tokens=8192,
            max_num_seqs=16,
            gpu_memory_utilization=self.options.memory,
            load_format="dummy",
            enforce_eager=False,
            attention_config={"backend": "FLASH_ATTN"},
            compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]},
            seed=0,
        )

    def ask(self, engine: engines.EngineProcess, name: str, seed: int) -> None:
        """Ask all prompts; keep what came of them under a name."""
        engine.ask(
            self.prompts(-1)[:1], 4, at_once=False
        )  # some wait before, and an idle machine wakes slowly
        answers = engine.ask(self.prompts(seed), 4, at_once=False)
        self.seconds.setdefault(name, []).append(answers.first_token_seconds)
        self.hits[name] = answers.hit_tokens
        self.tokens.setdefault(name, []).extend(answers.tokens)
        times = ", ".join(f"{each * 1e3:.1f}" for each in answers.first_token_seconds)
        print(f"{name}: first token after {times} ms, hits {answers.hit_tokens}", file=sys.stderr, flush=True)

    def run(self, system: str, rounds: int) -> None:
        """Measure one system."""
        begin = time.monotonic()
        print(f"{system}: starting", file=sys.stderr, flush=True)
        getattr(self, f"_run_{system}")(rounds)
        print(f"{system}: took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def _run_alone(self, rounds: int) -> None:
        with self.engine(None) as engine:
            engine.ask(self.prompts(0), 4, at_once=False)
            for seed in range(1, rounds + 1):
                self.ask(engine, "recomputed", seed)
                self.ask(engine, "from HBM", seed)

    def _run_tutti(self, rounds: int) -> None:
        root = self.folder / "tutti"
        root.mkdir()
        connector = engines.tutti(root, self.options.capacity, **json.loads(self.options.settings))
        with self.engine(connector) as engine:
            engine.ask(self.prompts(0), 4, at_once=False)
            engines.wait_for_quiet(root)
            for seed in range(1, rounds + 1):
                self.ask(engine, "Tutti, first time", seed)
                engines.wait_for_quiet(root)
        with self.engine(connector) as engine:
            engine.ask(self.prompts(0), 4, at_once=False)
            for seed in range(1, rounds + 1):
                self.ask(engine, "Tutti, restarted", seed)
        shutil.rmtree(root)

    def _run_host(self, rounds: int) -> None:
        with self.engine(offloading(self.options.host_bytes)) as engine:
            for seed in range(rounds + 1):
                self.ask(engine, "host memory, first time", seed)
            engine.forget()
            engine.ask(self.prompts(0), 4, at_once=False)
            for seed in range(1, rounds + 1):
                self.ask(engine, "host memory", seed)

    def _run_fs(self, rounds: int) -> None:
        root = self.folder / "fs"
        root.mkdir()
        connector = offloading(self.options.host_bytes, root)
        with self.engine(connector) as engine:
            for seed in range(rounds + 1):
                self.ask(engine, "fs tier, first time", seed)
                engines.wait_for_quiet(root)
        with self.engine(connector) as engine:
            engine.ask(self.prompts(0), 4, at_once=False)
            for seed in range(1, rounds + 1):
                self.ask(engine, "fs tier, restarted", seed)


def offloading(host_bytes: int, root: Path | None = None) -> dict[str, Any]:
    """The settings of vLLM's OffloadingConnector: host memory, or with it a file-system tier."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": host_bytes, "blocks_per_chunk": CHUNK_BLOCKS}
    if root is not None:
        extra |= {
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": str(root)}],
        }
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def table(bench: Bench) -> str:
    """Medians in ms, and whether the answers are those of vLLM alone."""
    head = " | ".join(f"{length:,}" for length in bench.options.lengths)
    lines = [
        f"| time to first token, ms | {head} | hit tokens | answers |",
        "| --- |" + " ---: |" * (2 + len(bench.options.lengths)),
    ]
    expected = bench.tokens.get("recomputed")
    for name, rounds in bench.seconds.items():
        medians = [statistics.median(column) * 1e3 for column in zip(*rounds, strict=True)]
        cells = " | ".join(f"{each:,.0f}" for each in medians)
        same = (
            ""
            if expected is None
            else ("same" if bench.tokens[name][-len(expected) :] == expected else "differ")
        )
        lines.append(f"| {name} | {cells} | {max(bench.hits[name]):,} | {same} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 8000, 32000, 64000])
    parser.add_argument("--rounds", type=int, default=2, help="prompts of each length")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--capacity", type=int, default=60 << 30, help="bytes of Tutti's store")
    parser.add_argument("--host-bytes", type=int, default=48 << 30, help="the peer's host memory")
    parser.add_argument("--memory", type=float, default=0.6, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--settings", default="{}", help="more settings of Tutti, as JSON")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutti-first-token-", dir=options.folder) as folder:
        bench = Bench(Path(folder), options)
        for system in options.systems:
            try:
                bench.run(system, options.rounds)
            except RuntimeError as error:
                print(f"{system}: {error}", file=sys.stderr, flush=True)
    print(table(bench))
    if options.json:
        result = {
            "seconds": bench.seconds,
            "hits": bench.hits,
            "tokens": bench.tokens,
            "settings": vars(options),
        }
        options.json.write_text(json.dumps(result, default=str, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
