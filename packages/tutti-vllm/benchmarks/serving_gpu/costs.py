# SPDX-License-Identifier: Apache-2.0
"""What a connector costs where it has nothing to give, and where the time of its loads goes.

    python packages/tutti-vllm/benchmarks/serving_gpu/costs.py --folder /dev/shm --json costs.json
    ... --parts new        only new prompts and decoding
    ... --cpu              the same on vLLM's CPU engine with a small model, to try the program

``new``: vLLM alone, with a connector that does nothing, with Tutti that stores nothing, with Tutti, and with
vLLM's own tier in host memory take turns: milliseconds a token while nothing is stored (answers too short for
a chunk) and while a few chunks are; the first token of a new prompt right behind another one, whose stores
may be under way, and after a pause.

``stored``: prompts from the same store by engines that started after it was filled, beside the host tier,
with the way of copying, its multiprocessors, the rest in idle steps and the number of reading threads varied;
milestones of each load, and what each callback costs, from ``watched_connector``.

``layers``: prompts that are stored in part, loaded layer by layer and as a whole, and from traces how much of
that is hidden.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import overlap
import phases
from fleet import prompts, say
from systems import Place, connector, engine_options, engines

__all__ = ["VARIANTS", "Bench", "table"]

NEW: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("alone", {}),
    "nothing": ("nothing", {}),
    "tutti, no stores": ("tutti, no stores", {}),
    "tutti": ("tutti", {}),
    "tutti, 2 multiprocessors": ("tutti", {"mover": "kernel", "sms": 2}),
    "tutti, copy engines": ("tutti", {"mover": "copy_engine"}),
    "host": ("host", {}),
}
"""Which engine is asked for new prompts, and what is changed in it while it runs."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tutti": ("tutti", {}),
    "tutti, copy engines": ("tutti", {"mover": "copy_engine"}),
    "tutti, kernel": ("tutti", {"mover": "kernel"}),
    "tutti, 2 multiprocessors": ("tutti", {"mover": "kernel", "sms": 2}),
    "tutti, 16 multiprocessors": ("tutti", {"mover": "kernel", "sms": 16}),
    "tutti, no rest": ("tutti", {"rest": 0.0}),
    "tutti, 8 threads": ("8 threads", {}),
    "tutti, 16 threads": ("16 threads", {}),
    "host": ("host", {}),
}
"""The same for stored prompts."""

SMALL = ("alone", "nothing", "tutti, no stores")
"""Engines that are asked for short prompts only."""


@dataclass
class Bench:
    """Engines that run, and what was found.

    Attributes:
        found: medians are taken of lists of seconds.
    """

    place: Place
    options: argparse.Namespace
    running: dict[str, engines.EngineProcess] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    def watch_file(self, name: str) -> Path:
        """What an engine's watched connector writes."""
        return self.place.folder / f"watch-{name.replace(' ', '-')}.jsonl"

    def start(
        self,
        name: str,
        system: str,
        *,
        watched: bool = False,
        stores: bool = False,
        traced: bool = False,
        **environment: str,
    ) -> None:
        """Start an engine; the first answer waits for it."""
        config = connector(system, self.place)
        if watched and config is not None:
            config["kv_connector_module_path"] = "watched_connector"
            config["kv_connector"] = "WatchedNothing" if system == "nothing" else "WatchedTutti"
            if system != "nothing":
                mode = "layerwise" if system == "tutti layer-wise" else "async"
                config["kv_connector_extra_config"] |= {"read_only": not stores, "load_mode": mode}
            environment |= {
                "TUTTI_WATCH": str(self.watch_file(name)),
                "TUTTI_KNOBS": str(self.knobs(name)),
                "VLLM_LOGGING_LEVEL": "INFO",
            }
        longest = max(self.options.new_lengths if name in SMALL else self.options.lengths)
        options, model = self._engine_options(system, longest)
        if traced:
            options["profiler_config"] = {
                "profiler": "torch",
                "torch_profiler_dir": str(self.traces(name)),
                "torch_profiler_activities": ["CPU" if self.options.cpu else "CUDA"],
                "torch_profiler_with_stack": False,
            }
        if self.options.cpu:
            # Scheduler and worker in one process, as on a GPU.
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self.running[name] = engines.EngineProcess(model, config, environment=environment, **options)

    def _engine_options(self, system: str, longest: int) -> tuple[dict[str, Any], Path]:
        if not self.options.cpu:
            # Pages of 2 MiB for 16 tokens.
            kv_bytes = (longest + 4096) * (2 << 20) // 16
            return engine_options(system, longest, 0.05, kv_bytes), self.place.model()
        from tutti_vllm.testing.tiny_model import make_tiny_model

        model = make_tiny_model(self.place.folder / "tiny")
        return {"max_model_len": longest + 512, "num_gpu_blocks_override": longest // 32 + 128}, model

    def knobs(self, name: str) -> Path:
        """The file that turns an engine's knobs."""
        return self.place.folder / f"knobs-{name.replace(' ', '-')}.json"

    def tune(self, variant: str, variants: dict[str, tuple[str, dict[str, Any]]]) -> str:
        """Have a variant's engine work as it says from its next request on; return the engine's name."""
        name, knobs = variants[variant]
        self.knobs(name).write_text(json.dumps(knobs), encoding="utf-8")
        return name

    def traces(self, name: str) -> Path:
        """The directory of an engine's traces."""
        return self.place.folder / f"traces-{name.replace(' ', '-')}"

    def ask(self, name: str, what: list[list[int]], tokens: int = 4, *, at_once: bool = False) -> Any:
        """Ask an engine; None from one that has ended."""
        if name not in self.running:
            return None
        try:
            return self.running[name].ask(what, tokens, at_once=at_once, timeout=self.options.patience)
        except RuntimeError as error:
            self.running.pop(name).close()
            self.found.setdefault("failed", {})[name] = str(error)[-3000:]
            say(f"{name} ended: {error}"[-3000:])
            return None

    def prompts(self, lengths: list[int], seed: int) -> list[list[int]]:
        """Random prompts that the model can read."""
        made = prompts(lengths, seed)
        return [[token % 2000 + 3 for token in each] for each in made] if self.options.cpu else made

    def settle(self) -> None:
        """Wait until nobody writes any more."""
        engines.wait_for_quiet(self.place.folder)

    def stop(self, *names: str) -> None:
        """End engines."""
        for name in names:
            if name in self.running:
                engine = self.running.pop(name)
                engine.close()
                self.found.setdefault("log", {}).setdefault(name, []).extend(engine.said())

    def save(self) -> None:
        """Write what was found."""
        if self.options.json:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    def note(self, part: str, key: str, name: str, seconds: float) -> None:
        """Keep a measurement."""
        self.found.setdefault(part, {}).setdefault(key, {}).setdefault(name, []).append(seconds)


def in_turn(names: list[str], turn: int) -> list[str]:
    """Return names, the first one last in the next turn."""
    return names[turn % len(names) :] + names[: turn % len(names)]


def measure_new(bench: Bench) -> None:
    """Measure what is not stored."""
    options = bench.options
    systems = ("alone", "nothing", "tutti, no stores", "tutti") + (() if options.cpu else ("host",))
    for system in systems:
        # A connector that only watches, where there is one of ours: all pay the same for it.
        bench.start(system, system, watched=system not in ("alone", "host"), stores=True)
    for system in systems:
        if bench.ask(system, bench.prompts([64], -1)) is not None:
            say(f"{system}: ready")
    for system in systems:
        bench.ask(system, bench.prompts([*options.new_lengths] * 2, -2))
        bench.ask(system, bench.prompts([12] * 16, -3), 8, at_once=True)
        if system in ("nothing", "tutti, no stores", "tutti"):
            count_calls(bench, system)
    bench.settle()
    chosen = [each for each, (name, _) in NEW.items() if name in bench.running]
    for turn in range(options.turns):
        for variant in in_turn(chosen, turn):
            name = bench.tune(variant, NEW)
            for kind, tokens in (("nothing to store", options.short), ("a few chunks", options.long)):
                answers = bench.ask(name, bench.prompts([12] * 16, 900 + turn), tokens, at_once=True)
                if answers is not None:
                    bench.note("token", kind, variant, statistics.median(answers.token_seconds))
                    bench.note("whole", kind, variant, answers.seconds)
    for turn in range(options.new_turns):
        for place, variant in enumerate(in_turn(chosen, turn)):
            _ask_for_new(bench, variant, 20_000 + 1000 * turn + 100 * place)
    say(table(bench.found))


def _ask_for_new(bench: Bench, variant: str, seed: int) -> None:
    """Ask for new prompts: the first right behind another one, the others after a pause each."""
    name = bench.tune(variant, NEW)
    short = bench.options.new_lengths[0]
    for number, (kind, length) in enumerate(
        [(f"{short} behind another", short), *((f"{n} after a pause", n) for n in bench.options.new_lengths)]
    ):
        bench.ask(name, bench.prompts([short], seed + number))
        if number:
            time.sleep(bench.options.pause)
            bench.ask(name, bench.prompts([12], 0))  # an idle machine wakes slowly
        answers = bench.ask(name, bench.prompts([length], seed + 50 + number))
        if answers is not None:
            bench.note("new", kind, variant, answers.first_token_seconds[0])


def fill(bench: Bench, names: list[str]) -> None:
    """Have prompts stored, and end the engines but for the host tier's."""
    if bench.found.get("filled"):
        names = [name for name in names if name != "tutti"]
    for name in names:
        if name not in bench.running:
            bench.start(name, name)
    bench.stop(*[each for each in bench.running if each not in names])
    for name in names:
        for length in bench.options.lengths:  # one by one, so that blocks of the last one are written before
            bench.ask(name, bench.prompts([length], 1))
            bench.settle()
    bench.stop("tutti")
    bench.found["filled"] = True


def measure_stored(bench: Bench) -> None:
    """Measure loads."""
    options = bench.options
    fill(bench, ["tutti"] if options.cpu else ["host", "tutti"])
    bench.start("tutti", "tutti", watched=True)
    for count in () if options.cpu else (8, 16):
        bench.start(f"{count} threads", "tutti", watched=True, TUTTI_THREADS=str(count))
    for name in list(bench.running):
        bench.ask(name, bench.prompts([64], -1))
        bench.ask(name, bench.prompts(options.lengths, 1), 1)
    say("engines for loads run")
    count_calls(bench, "tutti")
    chosen = [each for each in options.variants if VARIANTS[each][0] in bench.running]
    for turn in range(options.turns):
        for variant in in_turn(chosen, turn):
            name = bench.tune(variant, VARIANTS)
            if name in bench.running:
                bench.running[name].forget()
            bench.ask(name, bench.prompts([options.new_lengths[0]], 7000 + turn))
            for length in options.lengths:
                before = len(phases.read(bench.watch_file(name)))
                answers = bench.ask(name, bench.prompts([length], 1), 4)
                if answers is None:
                    break
                bench.note("stored", str(length), variant, answers.first_token_seconds[0])
                bench.note("hits", str(length), variant, answers.hit_tokens[0])
                _note_load(bench, variant, length, phases.read(bench.watch_file(name))[before:])
    bench.stop(*list(bench.running))
    say(table(bench.found))


def measure_layers(bench: Bench) -> None:
    """Measure loads that a step waits for layer by layer, and how much of them is hidden."""
    options = bench.options
    fill(bench, ["tutti"])
    bench.stop(*list(bench.running))
    names = ["tutti layer-wise", "tutti"]
    for name in names:
        bench.start(name, name, watched=True, traced=True)
    length = max(each for each in options.lengths if each <= options.layers_length)
    stem = bench.prompts([length], 1)[0]
    for name in names:
        bench.ask(name, bench.prompts([64], -1))
        bench.ask(name, [stem], 1)
    say("engines for layer-wise loads run")
    for turn in range(options.turns):
        for name in in_turn(names, turn):
            for share in (50, 75, 90, 100):
                kept = length * share // 100
                tail = bench.prompts([length - kept], 6000 + 100 * turn + share)[0]
                last = turn == options.turns - 1 and share < 100
                _ask_for_share(bench, name, share, stem[:kept] + tail, traced=last)
    bench.stop(*list(bench.running))
    say(table(bench.found))


def count_calls(bench: Bench, name: str) -> None:
    """Note what a connector's callbacks cost in steps that only decode."""
    for _ in range(2):  # the first one warms up
        before = len(phases.read(bench.watch_file(name)))
        bench.ask(name, bench.prompts([12] * 16, 800), bench.options.short, at_once=True)
    lines = phases.read(bench.watch_file(name))
    bench.found.setdefault("calls", {})[name] = phases.callbacks(lines, before)


def _ask_for_share(bench: Bench, name: str, share: int, prompt: list[int], *, traced: bool) -> None:
    if name not in bench.running:
        return
    bench.running[name].forget()
    bench.ask(name, bench.prompts([64], -1))
    before = len(phases.read(bench.watch_file(name)))
    if traced:
        bench.running[name].profile(begin=True)
    answers = bench.ask(name, [prompt], 1)
    if traced:
        bench.running[name].profile(begin=False)
        bench.ask(name, bench.prompts([64], -1))  # the trace is written by then
    if answers is None:
        return
    if not traced:
        bench.note("layers", f"{share} % stored", name, answers.first_token_seconds[0])
        return
    files = sorted(bench.traces(name).rglob("*.json*"), key=lambda path: path.stat().st_mtime)
    lines = phases.read(bench.watch_file(name))[before : before + 1]
    try:
        found: Any = overlap.report(overlap.read_trace(files[-1]), lines)
    except (ValueError, IndexError, KeyError) as error:
        found = str(error)
    bench.found.setdefault("overlap", {}).setdefault(f"{share} % stored", {})[name] = found


def _note_load(bench: Bench, variant: str, length: int, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        entry = {"milestones": phases.milestones(line), "spans": phases.spans([line])}
        loads = bench.found.setdefault("loads", {}).setdefault(str(length), {})
        loads.setdefault(variant, []).append(entry)


def table(found: dict[str, Any]) -> str:
    """Return everything as Markdown: medians in milliseconds, hits, and the milestones of loads."""
    text = []
    for part, title in (
        ("token", "ms a token"),
        ("whole", "ms in all"),
        ("new", "new prompt: first token, ms"),
        ("stored", "stored prompt: first token, ms"),
        ("layers", "first token, ms"),
    ):
        kinds = found.get(part, {})
        names = list(dict.fromkeys(name for kind in kinds.values() for name in kind))
        if not names:
            continue
        text.append(f"| {title} | " + " | ".join(kinds) + " |\n| --- |" + " ---: |" * len(kinds))
        for name in names:
            cells = [kinds[kind].get(name) for kind in kinds]
            shown = ["" if cell is None else f"{statistics.median(cell) * 1e3:.2f}" for cell in cells]
            text.append(f"| {name} | " + " | ".join(shown) + " |")
    hits = found.get("hits", {})
    for variant in dict.fromkeys(name for each in hits.values() for name in each):
        shown = [
            f"{min(each[variant]):,} of {int(length):,}" for length, each in hits.items() if variant in each
        ]
        text.append(f"hits, {variant}: " + ", ".join(shown))
    for length, variants in found.get("loads", {}).items():
        text.append(f"\nmilestones of loads of {length} tokens, ms after arrival, medians:")
        for variant, entries in variants.items():
            stones = {
                event: [entry["milestones"][event] for entry in entries if event in entry["milestones"]]
                for event in phases.EVENTS
            }
            shown = [f"{event} {statistics.median(each):.1f}" for event, each in stones.items() if each]
            text.append(f"- {variant}: " + ", ".join(shown))
            steps: dict[str, list[str]] = {}
            for entry in entries[-1:]:
                for name, (count, median, total) in entry["spans"].items():
                    steps[name] = [f"{count} x {median:.2f} = {total:.1f}"]
            text.append("  " + ", ".join(f"{name} {each[0]}" for name, each in steps.items()))
    for name, calls in found.get("calls", {}).items():
        steps = max(1, calls.get("build_connector_meta", (1, 0.0))[0])
        each = {what: count * mean / steps for what, (count, mean) in calls.items()}
        shown = ", ".join(f"{what} {us:.1f}" for what, us in each.items())
        text.append(f"callbacks, {name}: {sum(each.values()):.1f} us a step ({steps} steps): {shown}")
    for share, names in found.get("overlap", {}).items():
        for name, values in names.items():
            shown = values
            if isinstance(values, dict):
                shown = ", ".join(f"{what} {value:.3f}" for what, value in values.items())
            text.append(f"overlap, {name}, {share}: {shown}")
    for name, lines in found.get("log", {}).items():
        text += [
            f"{name} said: {line}" for line in dict.fromkeys(lines) if " go by " in line or "WARN" in line
        ]
    for name, error in found.get("failed", {}).items():
        text.append(f"{name} ended: {error[-300:]}")
    return "\n".join(text)


PARTS = {"new": measure_new, "stored": measure_stored, "layers": measure_layers}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--cpu", action="store_true", help="vLLM's CPU engine and a small model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 8000, 32000, 64000])
    parser.add_argument("--new-lengths", type=int, nargs="+", default=[1000, 8000], help="of new prompts")
    parser.add_argument("--pause", type=float, default=0.4, help="seconds before some of the new prompts")
    parser.add_argument("--short", type=int, default=44, help="tokens of answers that complete no chunk")
    parser.add_argument("--long", type=int, default=200, help="tokens of answers that complete some")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-turns", type=int, default=6)
    parser.add_argument("--layers-length", type=int, default=32000, help="longest prompt of ``layers``")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--capacity", type=int, default=44 << 30, help="bytes of Tutti's stores")
    parser.add_argument("--host-bytes", type=int, default=24 << 30, help="the peer's host memory")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds for an answer or a start")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Measure and print. The result is written after every part."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="tutti-costs-", dir=options.folder) as folder:
        bench = Bench(Place(Path(folder), options.capacity, options.host_bytes, {}), options)
        try:
            for part in options.parts:
                begin = time.monotonic()
                PARTS[part](bench)
                say(f"-- {part}: {time.monotonic() - begin:.0f} s")
                bench.save()
        except KeyboardInterrupt:
            bench.found.setdefault("failed", {})["costs"] = (
                "it was interrupted; what is here was measured before"
            )
        finally:
            bench.stop(*list(bench.running))
            bench.save()
    print(table(bench.found))
    return 1 if "failed" in bench.found else 0


if __name__ == "__main__":
    sys.exit(main())
