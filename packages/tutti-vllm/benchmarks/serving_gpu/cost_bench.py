# SPDX-License-Identifier: Apache-2.0
"""Engines that ``costs.py`` asks in turns, what is varied in them, and what was found."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet import prompts, say
from systems import Place, connector, engine_options, engines

__all__ = ["NEW", "SMALL", "USUAL", "VARIANTS", "Bench", "in_turn"]

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
    "fs": ("fs", {}),
    "computed": ("alone", {}),
}
"""The same for stored prompts. "computed" is vLLM alone, which has forgotten them."""

USUAL = [name for name in VARIANTS if name != "tutti, 16 threads"]
"""As many engines as one device's memory has room for."""

SMALL = ("nothing", "tutti, no stores")
"""Engines that are asked for new prompts only."""

SHORTER = ("8 threads", "16 threads", "drive")
"""Engines that are not asked for the longest prompts: five with room for those fill a device."""

STORED_SEED = 1_000_000


@dataclass
class Bench:
    """Engines that run, and what was found.

    Attributes:
        found: medians are taken of lists of seconds.
        room: tokens of the longest prompt that each engine has room for.
    """

    place: Place
    options: argparse.Namespace
    running: dict[str, engines.EngineProcess] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    room: dict[str, int] = field(default_factory=dict)

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
        self.knobs(name).unlink(missing_ok=True)
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
        longest = max(self.options.new_lengths if name in SMALL else self._lengths(name))
        self.room[name] = longest
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

    def _lengths(self, name: str) -> list[int]:
        lengths: list[int] = sorted(self.options.lengths)
        return lengths[:-1] or lengths if name in SHORTER else lengths + self.options.new_lengths

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
        except (RuntimeError, OSError) as error:
            self.running.pop(name).close()
            self.found.setdefault("failed", {})[name] = str(error)[-3000:]
            say(f"{name} ended: {error}"[-3000:])
            return None

    def forget(self, name: str) -> None:
        """Empty vLLM's own prefix cache."""
        if name in self.running:
            self.running[name].forget()

    def prompts(self, lengths: list[int], seed: int) -> list[list[int]]:
        """Random prompts that the model can read."""
        made = prompts(lengths, seed)
        return [[token % 2000 + 3 for token in each] for each in made] if self.options.cpu else made

    def stored_prompt(self, length: int) -> list[int]:
        """The prompt of a length that is stored: none begins as another one does."""
        return self.prompts([length], STORED_SEED + length)[0]

    def settle(self) -> None:
        """Wait until nobody writes any more."""
        engines.wait_for_quiet(self.place.folder)
        if "drive" in self.running and self.place.drive is not None:
            engines.wait_for_quiet(self.place.drive)

    def stop(self, *names: str) -> None:
        """End engines, all at a time."""
        ending = {name: self.running.pop(name) for name in names if name in self.running}
        for engine in ending.values():
            engine.begin_close()
        for name, engine in ending.items():
            engine.close()
            self._keep_log(name, engine)

    def keep_logs(self) -> None:
        """Keep what the engines that run have said."""
        for name, engine in self.running.items():
            self._keep_log(name, engine)

    def _keep_log(self, name: str, engine: engines.EngineProcess) -> None:
        kept = self.found.setdefault("log", {}).setdefault(name, [])
        kept += [line for line in engine.said() if line not in kept]

    def save(self) -> None:
        """Write what was found."""
        if self.options.json:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    def note(self, part: str, key: str, name: str, seconds: float) -> None:
        """Keep a measurement."""
        self.found.setdefault(part, {}).setdefault(key, {}).setdefault(name, []).append(seconds)


def in_turn(names: list[str], turn: int) -> list[str]:
    """Return names, the first one last in the next turn."""
    return names[turn % len(names) :] + names[: turn % len(names)] if names else []
