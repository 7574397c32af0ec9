# SPDX-License-Identifier: Apache-2.0
"""Shows a prefix that one server computed as a hit on another: a master, two nodes, two vLLM engines.

All on this machine, each in processes of its own. Server A answers prompts cold; server B, whose own store is
empty, answers them warm, and prompts that nobody knows beside them; A is killed; B still hits what A left.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.engine_process import Answer, EngineFailedError, EngineProcess, EngineSpec
from tutti_engine.testing.mooncake import MooncakeCluster, mooncake_master
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

MODEL = TinyModel()
SEGMENT_BYTES = 1 << 30


@dataclass(frozen=True)
class Stage:
    """What came of a stage's prompts.

    Attributes:
        title: what was asked of whom.
        seconds: time to first token, the median.
        hit_tokens: tokens that were not computed, the least of all prompts.
        own_chunks: chunks that came from the server's own drive, the most of all prompts.
        identical: whether the answers are those of A.
    """

    title: str
    seconds: float
    hit_tokens: int
    own_chunks: int
    identical: bool


class Demo:
    """A cluster, two engines, and the prompts that A knows and that nobody knows."""

    def __init__(self, folder: Path, length: int, repeats: int) -> None:
        source = random.Random(11)

        def prompts() -> list[list[int]]:
            return [[source.randrange(3, MODEL.vocabulary) for _ in range(length)] for _ in range(repeats)]

        self.known, self.left, self.unknown = prompts(), prompts(), prompts()
        self.folder, self.length = folder, length
        self.model = make_tiny_model(folder / "model", MODEL)

    def spec(self, name: str, master: str) -> EngineSpec:
        """Return what a server is started with."""
        settings: dict[str, Any] = {
            "capacity_bytes": 4 << 30,
            "root": str(self.folder / name),
            "shared_store": {"kind": "mooncake", "master": master},
            "shared_write": "always",
            # A loaded machine is to show the same as an idle one.
            "shared_lookup_ms": 1000,
            "shared_timeout_seconds": 30,
        }
        options = {"max_model_len": self.length + 64, "num_gpu_blocks_override": 1024}
        return EngineSpec(str(self.model), settings, options)

    def run(self, console: Console) -> list[Stage]:
        """Run it all; return the stages."""
        with MooncakeCluster() as cluster:
            for _ in range(2):
                cluster.start_node(SEGMENT_BYTES)
            console.print(f"a master at {cluster.master} and two nodes of {SEGMENT_BYTES >> 20} MiB")
            with EngineProcess(self.spec("b", cluster.master)) as b:
                return self.stages(b, cluster.master, console)

    def stages(self, b: EngineProcess, master: str, console: Console) -> list[Stage]:
        """Let A answer and die, and B answer before and after."""
        a = EngineProcess(self.spec("a", master))
        try:
            console.print("server A and server B are starting")
            for engine in (a, b):
                engine.answer(warm_up(self.length))
            cold = answer_all(a, self.known)
            left = answer_all(a, self.left)
            a.answer(warm_up(500))  # what was stored last is on its way while this one is computed
            console.print("A has answered; now B")
            # Known and unknown ones take turns, so that a machine that gets slower meets both.
            warm, computed = [], []
            for one, other in zip(self.known, self.unknown, strict=True):
                warm.append(b.answer(one))
                computed.append(b.answer(other))
        finally:
            a.kill()
        console.print("A was killed; B again")
        after = answer_all(b, self.left)
        return [
            stage("A, nobody knows the prompt", cold, None),
            stage("B, A has computed it", warm, cold),
            stage("B, nobody knows the prompt", computed, None),
            stage("B, A has computed it and is dead", after, left),
        ]


def warm_up(length: int) -> list[int]:
    """Return a prompt that no other one begins with."""
    return [3 + n % 1000 for n in range(length)]


def answer_all(engine: EngineProcess, prompts: Sequence[list[int]]) -> list[Answer]:
    """Return an engine's answers, one after the other."""
    return [engine.answer(prompt) for prompt in prompts]


def stage(title: str, answers: Sequence[Answer], expected: Sequence[Answer] | None) -> Stage:
    """Sum a stage up."""
    return Stage(
        title=title,
        seconds=statistics.median(each.seconds for each in answers),
        hit_tokens=min(each.hit_tokens for each in answers),
        own_chunks=max(each.counters.get("load_chunks", 0) for each in answers),
        identical=expected is None or all(x.tokens == y.tokens for x, y in zip(answers, expected)),
    )


def show(stages: Sequence[Stage], length: int, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Prompts of {length:,} tokens: time to first token, medians")
    for title in ("", "first token", "hit\ntokens", "chunks from\nown drive", "tokens"):
        table.add_column(title, justify="right" if title != "" else "left")
    for each in stages:
        same = "identical" if each.identical else "DIFFERENT"
        table.add_row(
            each.title, f"{each.seconds * 1e3:,.0f} ms", f"{each.hit_tokens:,}", str(each.own_chunks), same
        )
    console.print(table)


def good(stages: Sequence[Stage]) -> bool:
    """Whether B hit, before and after A's death, faster than it computes, with A's tokens."""
    _, warm, computed, after = stages
    hits = all(each.hit_tokens and not each.own_chunks and each.identical for each in (warm, after))
    return hits and not computed.hit_tokens and warm.seconds < computed.seconds


def main() -> int:
    """Run the demo; return 1 if it did not show what it is to show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the stages as JSON instead of a table")
    parser.add_argument("--root", type=Path, help="directory for what it needs; by default a temporary one")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--repeats", type=int, default=3, help="prompts of each kind")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    if mooncake_master() is None:
        console.print("The demo needs Mooncake: pip install mooncake-transfer-engine-non-cuda", markup=False)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="tutti-cluster-", dir=arguments.root))
    try:
        stages = Demo(folder, arguments.length, arguments.repeats).run(console)
    except EngineFailedError as error:
        console.print(f"The demo could not run: {error}", markup=False)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps([asdict(each) for each in stages], indent=2))
    else:
        show(stages, arguments.length, console)
    return 0 if good(stages) else 1


if __name__ == "__main__":
    sys.exit(main())
