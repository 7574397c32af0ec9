# SPDX-License-Identifier: Apache-2.0
"""What is measured: first tokens, inter-token latency under stores, throughput without hits, hit rates.

Each part asks the systems in turns and adds to a result of plain lists, which ``report.py`` prints.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fleet import Fleet, prompts, say
from systems import engines

__all__ = ["after_restart", "before_restart", "decoding", "hit_rates"]

WAKE = 1000


def before_restart(fleet: Fleet, options: Namespace, result: dict[str, Any]) -> None:
    """First tokens of prompts that are new; then from HBM and from host memory."""
    for system in list(fleet.running):
        fleet.ask(system, prompts(options.warm, 0), 4)
        fleet.settle(system)
    for seed in range(1, options.rounds + 1):
        for system in list(fleet.running):
            name = "vLLM alone, computed" if system == "alone" else f"{system}, first time"
            first_tokens(fleet, system, name, options, result, seed)
            if system == "alone":
                first_tokens(fleet, system, "vLLM alone, from HBM", options, result, seed, each_twice=True)
            fleet.settle(system)
    fleet.forget("host")
    fleet.ask("host", prompts(options.warm, 0), 4)
    for seed in range(1, options.rounds + 1):
        first_tokens(fleet, "host", "host memory, no restart", options, result, seed)


def after_restart(fleet: Fleet, systems: list[str], options: Namespace, result: dict[str, Any]) -> None:
    """First tokens of the same prompts from new engines."""
    for system in systems:
        fleet.ask(system, prompts(options.warm, 0), 4)
    for seed in range(1, options.rounds + 1):
        for system in systems:
            first_tokens(fleet, system, f"{system}, restarted", options, result, seed)


def first_tokens(
    fleet: Fleet,
    system: str,
    name: str,
    options: Namespace,
    result: dict[str, Any],
    seed: int,
    *,
    each_twice: bool = False,
) -> None:
    """Ask for prompts of all lengths, one after the other."""
    if system == "fs" and seed > options.fs_rounds:
        return
    fleet.ask(system, prompts([WAKE], -2 - seed), 4)  # an idle machine wakes slowly
    answers = []
    for prompt in prompts(options.lengths, seed):
        if each_twice:
            fleet.ask(system, [prompt], 1)
        one = fleet.ask(system, [prompt], options.answer)
        if one is None:
            return
        answers.append(one)
    entry = result.setdefault("first_token", {}).setdefault(name, {"seconds": [], "hits": [], "tokens": []})
    entry["seconds"].append([one.first_token_seconds[0] for one in answers])
    entry["hits"].append([one.hit_tokens[0] for one in answers])
    entry["tokens"].append([one.tokens[0] for one in answers])
    times = ", ".join(f"{one.first_token_seconds[0] * 1e3:.1f}" for one in answers)
    say(f"{name}: first token after {times} ms, hits {entry['hits'][-1]}")


def decoding(fleet: Fleet, options: Namespace, result: dict[str, Any]) -> None:
    """Inter-token latency while prompts are stored, and throughput of prompts too short to be."""
    for turn in range(options.turns):
        for system in ("alone", "tutti"):
            for kind, count, length, tokens in (("stores", 8, 4000, 200), ("nothing to do", 16, 12, 200)):
                seed = 1000 + 10 * turn
                one = fleet.ask(system, prompts([length] * count, seed), tokens, at_once=True)
                if one is None:
                    return
                entry = result.setdefault("decoding", {}).setdefault(kind, {}).setdefault(system, [])
                pause = sorted(one.token_seconds)[count // 2]
                entry.append({"token_seconds": pause, "seconds": one.seconds})
                say(f"{system}, {kind}: {pause * 1e3:.3f} ms a token, {one.seconds:.2f} s")
                fleet.settle(system)


def hit_rates(fleet: Fleet, system: str, options: Namespace, result: dict[str, Any]) -> None:
    """First tokens of prompts that begin as a stored one does and end differently."""
    length = options.hit_length
    stored = dict(zip(options.lengths, prompts(options.lengths, 1), strict=True)).get(length)
    if stored is None:
        return
    for turn in range(options.turns):
        for share in options.shares:
            kept = length * share // 100
            tail = prompts([length - kept], 5000 + 100 * turn + share)[0]
            fleet.forget(system)
            one = fleet.ask(system, [stored[:kept] + tail], 4)
            if one is None:
                return
            entry = result.setdefault("hit_rates", {}).setdefault(system, {}).setdefault(str(share), [])
            entry.append({"seconds": one.first_token_seconds[0], "hits": one.hit_tokens[0]})
            say(f"{system}, {share} % of {length:,}: {one.first_token_seconds[0] * 1e3:.1f} ms")
            engines.wait_for_quiet(fleet.place.root("tutti"))
