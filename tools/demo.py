# SPDX-License-Identifier: Apache-2.0
"""Shows the cache at work: long prompts answered cold, the server restarted, the same prompts answered warm.

Engines run one after the other, each in processes of its own: vLLM alone, vLLM with Tutti on an empty store,
after that one has ended vLLM with Tutti on the store it left, and vLLM alone again.
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

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.engine_process import Answer, EngineFailedError, EngineProcess, EngineSpec
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

LENGTHS = (1024, 2048, 4096)
REPEATS = 3
MODEL = TinyModel()


@dataclass(frozen=True)
class Row:
    """Medians over the prompts of one length; bytes and tokens are of one prompt."""

    prompt_tokens: int
    hit_tokens: int
    bytes_written: int
    bytes_read: int
    alone_seconds: float
    cold_seconds: float
    warm_seconds: float
    identical: bool

    @property
    def speedup(self) -> float:
        """How many times sooner the first token comes after the restart than it came cold."""
        return self.cold_seconds / self.warm_seconds


def make_prompts(lengths: Sequence[int], repeats: int) -> list[list[int]]:
    """Return ``repeats`` random prompts of each length, lengths taking turns."""
    source = random.Random(7)
    return [
        [source.randrange(3, MODEL.vocabulary) for _ in range(length)]
        for _ in range(repeats)
        for length in lengths
    ]


def run_all(model: Path, root: Path, prompts: list[list[int]], console: Console) -> list[list[Answer]]:
    """Run the engines one after the other; return the answers of each.

    vLLM alone runs first and last, so that a machine that gets slower or faster meanwhile shows.
    """
    # The first prompt only warms the processes up and is left out of the table.
    warm_up = [3 + n % 1000 for n in range(500)]
    options = {"max_model_len": max(map(len, prompts)) + 64, "num_gpu_blocks_override": 1024}
    connector = {"capacity_bytes": 4 << 30, "root": str(root)}
    stages = (
        ("vLLM alone", None),
        ("with Tutti, nothing stored yet", connector),
        ("with Tutti, restarted", connector),
        ("vLLM alone again", None),
    )
    results = []
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for title, settings in stages:
            task = progress.add_task(f"{title}: starting", total=len(prompts) + 1)
            answers = []
            with EngineProcess(EngineSpec(str(model), settings, options)) as engine:
                for prompt in [warm_up, *prompts]:
                    answers.append(engine.answer(prompt))
                    progress.update(task, advance=1, description=title)
            results.append(answers[1:])
    return results


def make_rows(prompts: list[list[int]], results: list[list[Answer]]) -> list[Row]:
    """Return one row a prompt length."""
    alone, cold, warm, again = results
    rows = []
    for length in sorted({len(prompt) for prompt in prompts}):
        chosen = [n for n, prompt in enumerate(prompts) if len(prompt) == length]
        first = chosen[0]
        rows.append(
            Row(
                prompt_tokens=length,
                hit_tokens=min(warm[n].hit_tokens for n in chosen),
                bytes_written=cold[first].counters.get("written_bytes", 0),
                bytes_read=warm[first].counters.get("read_bytes", 0),
                alone_seconds=statistics.median(run[n].seconds for run in (alone, again) for n in chosen),
                cold_seconds=statistics.median(cold[n].seconds for n in chosen),
                warm_seconds=statistics.median(warm[n].seconds for n in chosen),
                identical=all(
                    alone[n].tokens == cold[n].tokens == warm[n].tokens == again[n].tokens for n in chosen
                ),
            )
        )
    return rows


def show(rows: list[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Time to first token, median of {REPEATS} prompts each")
    for title in (
        "prompt\ntokens",
        "hit\ntokens",
        "MiB\nread",
        "vLLM\nalone",
        "Tutti\ncold",
        "Tutti\nwarm",
        "cold /\nwarm",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("tokens", justify="left", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.prompt_tokens:,}",
            f"{row.hit_tokens:,}",
            f"{row.bytes_read / 2**20:.1f}",
            f"{row.alone_seconds * 1e3:,.0f} ms",
            f"{row.cold_seconds * 1e3:,.0f} ms",
            f"{row.warm_seconds * 1e3:,.0f} ms",
            f"{row.speedup:.1f} x",
            "identical" if row.identical else "DIFFERENT",
        )
    console.print(table)


def main() -> int:
    """Run the demo; return 1 if a token differs, nothing was hit or a hit was no faster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--root", type=Path, help="directory for the cache; by default a temporary one")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="prompt lengths in tokens")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    prompts = make_prompts(arguments.lengths, REPEATS)
    folder = Path(tempfile.mkdtemp(prefix="tutti-demo-", dir=arguments.root))
    try:
        model = make_tiny_model(folder / "model", MODEL)
        results = run_all(model, folder / "cache", prompts, console)
    except EngineFailedError as error:
        console.print(f"The demo could not run: {error}", markup=False)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = make_rows(prompts, results)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows, console)
    return 0 if all(r.identical and r.hit_tokens and r.speedup > 1 for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
