# SPDX-License-Identifier: Apache-2.0
"""What a connector costs where it has nothing to give, and where the time of its loads goes.

    python packages/tutti-vllm/benchmarks/serving_gpu/costs.py --folder /dev/shm --json costs.json
    ... --parts new        only new prompts and decoding
    ... --cpu              the same on vLLM's CPU engine with a small model, to try the program

``new``: vLLM alone, with a connector that does nothing, with Tutti that stores nothing, with Tutti, and with
vLLM's own tier in host memory take turns: milliseconds a token while nothing is stored (answers too short for
a chunk) and right behind a long new prompt, which is being stored; the first token of a new prompt right
behind another one, whose stores may be under way, and after a pause.

``stored``: prompts from the same store by engines that started after it was filled, beside vLLM that computes
them, the host tier and the file-system tier after a restart (once: afterwards they are in its host memory),
with the way of copying, its multiprocessors, the rest in idle steps and the number of reading threads varied;
milestones of each load, and what each callback costs, from ``watched_connector``.

``layers``: prompts that are stored in part, loaded layer by layer and as a whole, and from traces how much of
that is hidden. Then stored prompts on a drive that is slower than computing (``--drive``), beside vLLM that
computes them: once three loads have been measured, they are to be refused.

The last table says which goals were reached. A part that fails costs no other one, and what was measured
before is kept: it is written after every turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import overlap
import phases
from cost_bench import NEW, USUAL, VARIANTS, Bench, in_turn
from cost_table import table
from fleet import say
from systems import Place

__all__ = ["measure_layers", "measure_new", "measure_stored"]

FAR = 10_000
"""Tokens of new prompts from which on they take seconds: asked in fewer turns, of unchanged engines only."""


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
        bench.ask(system, bench.prompts([*options.new_lengths, *options.new_lengths[:2]], -2))
        bench.ask(system, bench.prompts([12] * 16, -3), 8, at_once=True)
        if system in ("nothing", "tutti, no stores", "tutti"):
            count_calls(bench, system)
    bench.settle()
    chosen = [each for each, (name, _) in NEW.items() if name in bench.running]
    for turn in range(options.idle_turns):
        for variant in in_turn([each for each in chosen if not NEW[each][1]], turn):
            _ask_for_tokens(bench, variant, "nothing to store", options.short, 900 + turn)
        bench.save()
    for turn in range(options.turns):
        for variant in in_turn([each for each in chosen if NEW[each][0] in ("alone", "tutti", "host")], turn):
            name = bench.tune(variant, NEW)
            seed = 40_000 + 100 * turn + chosen.index(variant)
            bench.ask(name, bench.prompts([max(options.new_lengths)], seed), 1)
            _ask_for_tokens(bench, variant, "a prompt being stored", options.long, seed + 50)
            bench.settle()
        bench.save()
    for turn in range(options.new_turns):
        for place, variant in enumerate(in_turn(chosen, turn)):
            _ask_for_new(bench, variant, turn, 20_000 + 1000 * turn + 100 * place)
        bench.save()
    say(table(bench.found))


def _ask_for_tokens(bench: Bench, variant: str, kind: str, tokens: int, seed: int) -> None:
    """Have sixteen requests answered at once."""
    name = bench.tune(variant, NEW)
    answers = bench.ask(name, bench.prompts([12] * 16, seed), tokens, at_once=True)
    if answers is not None:
        bench.note("token", kind, variant, statistics.median(answers.token_seconds))
        bench.note("whole", kind, variant, answers.seconds)


def _ask_for_new(bench: Bench, variant: str, turn: int, seed: int) -> None:
    """Ask for new prompts: the first right behind another one, the others after a pause each."""
    name = bench.tune(variant, NEW)
    short = bench.options.new_lengths[0]
    for number, (kind, length) in enumerate(
        [(f"{short} behind another", short), *((f"{n} after a pause", n) for n in bench.options.new_lengths)]
    ):
        if length >= FAR and (NEW[variant][1] or turn >= bench.options.far_turns):
            continue
        bench.ask(name, bench.prompts([short], seed + number))
        if number:
            time.sleep(bench.options.pause)
            bench.ask(name, bench.prompts([12], 0))  # an idle machine wakes slowly
        answers = bench.ask(name, bench.prompts([length], seed + 50 + number))
        if answers is not None:
            bench.note("new", kind, variant, answers.first_token_seconds[0])
    if name in ("tutti", "host"):
        bench.settle()  # the next one in turn is not to pay for these stores


def fill(bench: Bench, names: list[str]) -> None:
    """Have prompts stored, and end the engines but for those that keep them or never store any."""
    if bench.found.get("filled"):
        names = [name for name in names if name != "tutti"]
    bench.stop(*[each for each in bench.running if each not in (*names, "alone")])
    for name in names:
        if name not in bench.running:
            bench.start(name, name)
    for name in names:
        bench.tune(name, NEW | {"fs": ("fs", {}), "drive": ("drive", {})})
        for length in bench.options.lengths:  # one by one, so that blocks of the last one are written before
            if length > bench.room[name]:
                continue
            bench.ask(name, [bench.stored_prompt(length)], 1)
            bench.settle()
        # In one process vLLM makes steps, and hears of its last stores, only as long as it is asked.
        for _ in range(3) if bench.options.cpu else ():
            bench.ask(name, bench.prompts([64], -1))
            bench.settle()
    bench.stop("tutti", "fs", "drive")
    bench.found["filled"] = True


def measure_stored(bench: Bench) -> None:
    """Measure loads."""
    options = bench.options
    wanted = {VARIANTS[each][0] for each in options.variants}
    peers = set() if options.cpu else wanted & {"host", "fs"}
    fill(bench, [each for each in ("host", "tutti", "fs") if each in {"tutti", *peers}])
    bench.start("tutti", "tutti", watched=True)
    for count in () if options.cpu else (8, 16):
        if f"{count} threads" in wanted:
            bench.start(f"{count} threads", "tutti", watched=True, TUTTI_THREADS=str(count))
    for name, system in (("alone", "alone"), ("fs", "fs")):
        if name in wanted and name not in bench.running and (name == "alone" or not options.cpu):
            bench.start(name, system)
    for name in list(bench.running):
        bench.ask(name, bench.prompts([64], -1))
        some = [length for length in options.lengths[:2] if length <= bench.room[name]]
        # Prompts that are new tell a restarted engine what computing takes.
        bench.ask(name, bench.prompts(some, -4), 1)
        # What the file-system tier has read once is in its host memory afterwards.
        if name not in ("fs", "alone"):
            bench.ask(name, [bench.stored_prompt(each) for each in some], 1)
    say("engines for loads run")
    count_calls(bench, "tutti")
    chosen = [each for each in options.variants if VARIANTS[each][0] in bench.running]
    for turn in range(options.turns):
        for variant in in_turn(chosen, turn):
            # From the second time on, what the file-system tier has read is in its host memory.
            if variant != "fs" or not turn:
                _ask_for_stored(bench, variant, turn)
        say(f"turn {turn + 1} of {options.turns}")
        bench.save()
    bench.stop(*list(bench.running))
    say(table(bench.found))


def _ask_for_stored(bench: Bench, variant: str, turn: int) -> None:
    name = bench.tune(variant, VARIANTS)
    bench.forget(name)
    bench.ask(
        name, bench.prompts([bench.options.new_lengths[0]], 7000 + turn)
    )  # an idle machine wakes slowly
    for length in bench.options.lengths:
        if length > bench.room.get(name, 0):
            continue
        before = len(phases.read(bench.watch_file(name)))
        answers = bench.ask(name, [bench.stored_prompt(length)], 4)
        if answers is None:
            break
        bench.note("stored", str(length), variant, answers.first_token_seconds[0])
        bench.note("hits", str(length), variant, answers.hit_tokens[0])
        _note_load(bench, variant, length, phases.read(bench.watch_file(name))[before:])


def measure_layers(bench: Bench) -> None:
    """Measure loads that a step waits for layer by layer, and how much of them is hidden."""
    options = bench.options
    fill(bench, ["tutti", "drive"])
    bench.stop(*list(bench.running))
    names = ["tutti layer-wise", "tutti"]
    for name in names:
        bench.start(name, name, watched=True, traced=True)
    for name in ("drive", "alone"):
        bench.start(name, name)
    length = max(each for each in options.lengths if each <= options.layers_length)
    stem = bench.stored_prompt(length)
    for name in names:
        bench.ask(name, bench.prompts([64], -1))
        bench.ask(name, bench.prompts([length], -5), 1)
        bench.ask(name, [stem], 1)
    say("engines for layer-wise loads run")
    for turn in range(options.turns):
        for name in in_turn(names, turn):
            for share in (50, 75, 90, 100):
                kept = length * share // 100
                tail = bench.prompts([length - kept], 6000 + 100 * turn + share)[0]
                last = turn == options.turns - 1 and share < 100
                _ask_for_share(bench, name, share, stem[:kept] + tail, traced=last)
        bench.save()
    bench.stop(*names)
    _measure_drive(bench)
    bench.stop(*list(bench.running))
    say(table(bench.found))


def _measure_drive(bench: Bench) -> None:
    """Measure hits that are slower than computing: none may be loaded once that is known."""
    options = bench.options
    lengths = [length for length in options.lengths if length <= bench.room["drive"]]
    for name in ("drive", "alone"):
        for turn in range(4):
            bench.forget(name)
            bench.ask(name, bench.prompts(lengths[:2], 8000 + turn), 1)
            bench.ask(name, [bench.stored_prompt(lengths[0])], 1)
    for turn in range(options.turns):
        for name in in_turn(["drive", "alone"], turn):
            bench.forget(name)
            bench.ask(name, bench.prompts([options.new_lengths[0]], 8100 + turn))
            for length in lengths:
                answers = bench.ask(name, [bench.stored_prompt(length)], 4)
                if answers is not None:
                    bench.note("drive", str(length), name, answers.first_token_seconds[0])
                    bench.note("drive hits", str(length), name, answers.hit_tokens[0])
        bench.save()


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
    bench.forget(name)
    bench.ask(name, bench.prompts([64], -1))
    before = len(phases.read(bench.watch_file(name)))
    if traced:
        bench.running[name].profile(begin=True)
    answers = bench.ask(name, [prompt], 1)
    if traced and name in bench.running:
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
    except (ValueError, IndexError, KeyError, OSError) as error:
        found = f"{type(error).__name__}: {error}; {len(files)} traces"
    bench.found.setdefault("overlap", {}).setdefault(f"{share} % stored", {})[name] = found


def _note_load(bench: Bench, variant: str, length: int, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        entry = {"milestones": phases.milestones(line), "spans": phases.spans([line])}
        loads = bench.found.setdefault("loads", {}).setdefault(str(length), {})
        loads.setdefault(variant, []).append(entry)


PARTS = {"new": measure_new, "stored": measure_stored, "layers": measure_layers}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--cpu", action="store_true", help="vLLM's CPU engine and a small model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 8000, 32000, 64000])
    parser.add_argument(
        "--new-lengths", type=int, nargs="+", default=[1000, 8000, 32000], help="of new prompts"
    )
    parser.add_argument("--pause", type=float, default=0.4, help="seconds before some of the new prompts")
    parser.add_argument("--short", type=int, default=44, help="tokens of answers that complete no chunk")
    parser.add_argument("--long", type=int, default=200, help="tokens of answers beside stores")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-turns", type=int, default=6)
    parser.add_argument("--idle-turns", type=int, default=8, help="of answers with nothing to store")
    parser.add_argument("--far-turns", type=int, default=3, help=f"of new prompts from {FAR} tokens on")
    parser.add_argument("--layers-length", type=int, default=32000, help="longest prompt of ``layers``")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=USUAL)
    parser.add_argument("--capacity", type=int, default=30 << 30, help="bytes of Tutti's stores")
    parser.add_argument("--host-bytes", type=int, default=16 << 30, help="the peers' host memory")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--drive", type=Path, help="a folder on a drive; default: the temporary folder")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds for an answer or a start")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Measure and print. The result is written after every turn."""
    options = arguments()
    with (
        tempfile.TemporaryDirectory(
            prefix="tutti-costs-", dir=options.folder, ignore_cleanup_errors=True
        ) as folder,
        tempfile.TemporaryDirectory(
            prefix="tutti-costs-", dir=options.drive, ignore_cleanup_errors=True
        ) as drive,
    ):
        place = Place(Path(folder), options.capacity, options.host_bytes, {}, Path(drive))
        bench = Bench(place, options)
        try:
            for part in options.parts:
                _run_part(bench, part)
        except KeyboardInterrupt:
            bench.found.setdefault("failed", {})["costs"] = (
                "it was interrupted; what is here was measured before"
            )
        finally:
            # First, as engines may take long to end.
            bench.keep_logs()
            bench.save()
            print(table(bench.found), flush=True)
            bench.stop(*list(bench.running))
            bench.save()
    return 1 if "failed" in bench.found else 0


def _run_part(bench: Bench, part: str) -> None:
    """Measure a part; one that fails is a line of the result, and its engines end."""
    begin = time.monotonic()
    try:
        PARTS[part](bench)
    except Exception as error:
        traceback.print_exc()
        bench.found.setdefault("failed", {})[part] = f"{type(error).__name__}: {error}"
        bench.stop(*list(bench.running))
    say(f"-- {part}: {time.monotonic() - begin:.0f} s")
    bench.save()


if __name__ == "__main__":
    sys.exit(main())
