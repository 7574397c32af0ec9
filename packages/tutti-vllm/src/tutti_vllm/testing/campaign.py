# SPDX-License-Identifier: Apache-2.0
"""One process of the differential test: a pool of prompts, vLLM's own answers, engines with the connector.

Prints one JSON line a schedule on standard output; ``tutti_vllm.testing.differential`` reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tutti_engine import ExecutionSettings
from tutti_engine.planning.breaker import Breaker
from tutti_engine.store.local_store import bytes_needed
from tutti_engine.testing.churn import occupied
from tutti_vllm.testing.campaign_models import BLOCKS_PER_CHUNK, VOCABULARY, CampaignModel, model_of
from tutti_vllm.testing.faults import FAULT_MIXES, FaultMix
from tutti_vllm.testing.one_process import ErrorLog, OneProcessEngine, prepare_process
from tutti_vllm.testing.schedules import (
    MAX_ANSWER,
    Action,
    EngineChoice,
    Prompt,
    Schedule,
    Stage,
    make_prompts,
    make_stages,
)
from tutti_vllm.testing.scripts import Script, asked_by, from_text
from tutti_vllm.testing.shared_trouble import SharedTrouble, shared_settings

__all__ = ["MARK", "Pool", "Run", "run_campaign", "run_script", "stage_of"]

MARK = "tutti-schedule "
"""Begins the lines of the output that report a schedule."""

MARGIN = 1e-3
"""Least distance, in log probability, of the best token from the next one.

Batches of other shapes round differently, some 1e-6 in float32; where two tokens are closer than that, either
is right. Answers are compared up to the first such place.
"""

DRAIN_SECONDS = 60.0

ANOTHER_SERVER = 0.7
"""Chance that an engine that shares a store finds nothing on its own drive."""

KEEPS_SHARING = 0.9
"""Chance that it goes on to share after the connector's cache was reset."""

IO_TIMEOUT = 0.2


class Pool:
    """Prompts and the answers of vLLM alone, each prompt by itself and without a prefix cache.

    Args:
        model: folder of the model.
        prompts: all prompts.
        wanted: indices of those whose answers are needed; by default of all.
    """

    def __init__(self, model: Path, prompts: Sequence[Prompt], wanted: Collection[int] | None = None) -> None:
        self.prompts: list[list[int]] = []
        self.answers: list[list[int]] = []
        needed = set(range(len(prompts)) if wanted is None else wanted)
        needed |= {turn for each in needed if (turn := prompts[each].turn_of) is not None}
        engine = OneProcessEngine(model, enable_prefix_caching=False, num_gpu_blocks_override=128)
        for number, prompt in enumerate(prompts):
            tokens = list(prompt.tokens)
            if number not in needed:
                self.prompts.append(tokens)
                self.answers.append([])
                continue
            if prompt.turn_of is not None:
                tokens = [*self.prompts[prompt.turn_of], *self.answers[prompt.turn_of], *tokens]
            self.prompts.append(tokens)
            self.answers.append(_sure_answer(engine, tokens))
        engine.close()


def _sure_answer(engine: OneProcessEngine, tokens: list[int]) -> list[int]:
    engine.ask("reference", tokens, MAX_ANSWER, logprobs=2)
    finished: list[Any] = []
    while not finished:
        finished = list(engine.step())
    (completion,) = finished[0].outputs
    sure = []
    for token, nearest in zip(completion.token_ids, completion.logprobs):
        first, second = sorted((each.logprob for each in nearest.values()), reverse=True)[:2]
        if first - second < MARGIN:
            break
        sure.append(token)
    return sure


class Run:
    """One engine with the connector, and the schedules that it is put through."""

    def __init__(
        self,
        model: CampaignModel,
        folder: Path,
        pool: Pool,
        choice: EngineChoice,
        seed: int,
        *,
        shared: bool = False,
    ) -> None:
        """Start an engine.

        Args:
            model: what it runs.
            folder: where model and storage are.
            pool: prompts and answers.
            choice: how it is set up.
            seed: of the faults.
            shared: whether it shares a store with the engines before and after it in the same folder, of whom
                most have nothing else left.
        """
        from tutti_vllm.testing import faulty_connector

        self._trouble: SharedTrouble | None = None
        self._keeps_sharing = False
        sharing: dict[str, Any] = {}
        if shared:
            chance = random.Random(seed)
            sharing = shared_settings(folder / "pool", chance)
            (folder / "pool").mkdir(mode=0o700, exist_ok=True)
            self._trouble = SharedTrouble(folder / "pool", seed)
            self._keeps_sharing = chance.random() < KEEPS_SHARING
            if chance.random() < ANOTHER_SERVER:
                shutil.rmtree(folder / "cache", ignore_errors=True)
        self._pool = pool
        self._root = folder / "cache"
        self._errors = ErrorLog()
        self.tally: Counter[str] = Counter()
        self._conditions = faulty_connector.CONDITIONS
        geometry = model.geometry
        segment = geometry.segment_bytes
        default = ExecutionSettings()
        self._conditions.seed = seed
        self._conditions.mix = FaultMix()
        self._conditions.late_copies = choice.late_copies
        self._conditions.execution = ExecutionSettings(
            load_bank_bytes=choice.load_slots * segment or default.load_bank_bytes,
            store_bank_bytes=choice.store_slots * segment or default.store_bank_bytes,
            io_timeout=IO_TIMEOUT,
        )
        self.capacity_bytes = bytes_needed(choice.capacity_chunks, geometry=geometry, ranks=1, roots=1)
        connector = {
            "kv_connector": faulty_connector.FaultyTuttiConnector.__name__,
            "kv_connector_module_path": faulty_connector.__name__,
            "kv_load_failure_policy": choice.policy,
            "kv_connector_extra_config": {
                "capacity_bytes": self.capacity_bytes,
                "root": str(self._root),
                "blocks_per_chunk": BLOCKS_PER_CHUNK,
                "strict": True,
            }
            | choice.settings
            | sharing,
        }
        options = dict(choice.options)
        # The groups of a model share vLLM's blocks.
        options["num_gpu_blocks_override"] *= model.groups
        self._may_fail = choice.policy == "fail"
        self.engine = OneProcessEngine(folder / "model", connector, overlapped=choice.overlapped, **options)
        planner = self.engine.connector._scheduler.engine.planner
        # They open and close in the time of a schedule.
        planner.load_breaker = Breaker(cooldown=0.02, max_cooldown=0.1)
        planner.store_breaker = Breaker(cooldown=0.02, max_cooldown=0.1)
        side = self.engine.connector._scheduler.shared
        if side is not None:
            side.tier.load_breaker = Breaker(cooldown=0.02, max_cooldown=0.1)
            side.tier.store_breaker = Breaker(cooldown=0.02, max_cooldown=0.1)
            side.tier.lookup.breaker = Breaker(cooldown=0.02, max_cooldown=0.1)
            if self._keeps_sharing:
                # After a reset nobody knows whose weights the objects are of; here everybody does.
                side.tier.retire = lambda why: None
        self._live: dict[str, tuple[int, int]] = {}
        self._preempted: Counter[str] = Counter()
        self._asked = 0
        self._problems: list[str] = []

    def run(self, schedule: Schedule) -> list[str]:
        """Run a schedule and what is left after it; return what is wrong."""
        self._problems = []
        failed, told = self._failed_chunks(), self.tally["failed"]
        self._conditions.mix = FAULT_MIXES[schedule.faults]
        for action in schedule.actions:
            if self._trouble is not None:
                self._trouble.act()
            self._act(action)
            self._step(1)
        self._drain()
        self._conditions.mix = FaultMix()
        if self._trouble is not None:
            # Only now: whatever the shared store does, requests end.
            self._trouble.heal()
        held = self.engine.become_idle()
        if held:
            self._problems.append(f"held by the idle engine: {held}")
        if self.tally["failed"] > told and self._failed_chunks() == failed:
            self._problems.append("requests failed although no load did")
        used = occupied(self._root)
        if used > self.capacity_bytes:
            self._problems.append(f"{used} bytes on disk, {self.capacity_bytes} are allowed")
        self._problems += [f"logged: {message}" for message in self._errors.take()]
        return self._problems

    def close(self) -> dict[str, int]:
        """End the engine; return the connector's counters."""
        counters: dict[str, int] = self.engine.connector.counters()
        self.engine.close()
        return counters

    def _failed_chunks(self) -> int:
        counters = self.engine.connector.counters()
        return sum(int(counters.get(name, 0)) for name in ("load_failed_chunks", "shared_load_failed_chunks"))

    def _act(self, action: Action) -> None:
        if action.kind == "ask":
            tokens = max(1, min(action.second, len(self._pool.answers[action.first])))
            name = f"request-{self._asked}"
            self._asked += 1
            self._live[name] = action.first, tokens
            self.engine.ask(name, self._pool.prompts[action.first], tokens)
        elif action.kind == "abort" and self._live:
            name = list(self._live)[action.first % len(self._live)]
            del self._live[name]
            self.tally["aborted"] += 1
            self.engine.engine.abort_request([name])
        elif action.kind == "step":
            self._step(action.first)
        elif action.kind == "forget":
            self._forget(connector=bool(action.first), running=bool(action.second))
        elif action.kind == "settle":
            self._drain()
            self.engine.settle()

    def _forget(self, *, connector: bool, running: bool) -> None:
        self.tally["resets"] += 1
        try:
            self.engine.engine.reset_prefix_cache(reset_running_requests=running, reset_connector=connector)
        except RuntimeError as error:
            # What vLLM itself says while a request waits for its load.
            if "waiting for remote KV" not in str(error):
                raise

    def _step(self, count: int) -> None:
        for _ in range(count):
            if not self.engine.engine.has_unfinished_requests():
                return
            self.tally["steps"] += 1
            for output in self.engine.step():
                self._compare(output)
            for request in self.engine.scheduler.requests.values():
                if request.num_preemptions > self._preempted[request.request_id]:
                    self._preempted[request.request_id] += 1
                    self.tally["preempted"] += 1

    def _compare(self, output: Any) -> None:
        if output.request_id not in self._live:
            return
        prompt, count = self._live.pop(output.request_id)
        self.tally["finished"] += 1
        self.tally["cached_tokens"] += output.num_cached_tokens or 0
        (completion,) = output.outputs
        # A prompt without a sure token still has to be answered.
        wanted = self._pool.answers[prompt][:count]
        if self._may_fail and completion.finish_reason == "error":
            # What it had said before has to be right.
            self.tally["failed"] += 1
            wanted = wanted[: len(completion.token_ids)]
            if list(completion.token_ids)[: len(wanted)] == wanted:
                return
        if list(completion.token_ids)[: len(wanted)] != wanted or completion.finish_reason != "length":
            self._problems.append(
                f"prompt {prompt}: {list(completion.token_ids)} ({completion.finish_reason}), "
                f"vLLM alone says {wanted}"
            )

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.engine.engine.has_unfinished_requests():
            self._step(1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests do not end: {self._live}")
        if self._live:
            self._problems.append(f"requests never ended: {self._live}")
            self._live.clear()


def run_campaign(
    seed: int, schedules: int, folder: Path, *, shared: bool = False
) -> Iterator[dict[str, Any]]:
    """Run schedules; yield for each one what is wrong, and after each engine its counters.

    ``shared``: see ``Run``.
    """
    chance = random.Random(seed)
    model = model_of(seed)
    prompts = make_prompts(chance, VOCABULARY, model.geometry.chunk_tokens)
    pool = Pool(model.make(folder / "model"), prompts)
    number = 0
    for stage in make_stages(chance, prompts):
        run = Run(model, folder, pool, stage.choice, seed=stage.seed, shared=shared)
        for schedule in stage.schedules[: schedules - number]:
            problems = run.run(schedule)
            yield {"schedule": number, "problems": problems, "faults": schedule.faults}
            number += 1
        tally = dict(run.tally)
        facts = {"model": model.name, "policy": stage.choice.policy, "overlapped": stage.choice.overlapped}
        facts |= stage.choice.options | stage.choice.settings
        yield {"engine": facts, "counters": run.close() | tally}
        if number >= schedules:
            return


def stage_of(seed: int, engine: int) -> Stage:
    """Return one engine of a campaign, by its number."""
    chance = random.Random(seed)
    prompts = make_prompts(chance, VOCABULARY, model_of(seed).geometry.chunk_tokens)
    return next(islice(make_stages(chance, prompts), engine, None))


def run_script(seed: int, script: Script, folder: Path, pool: Pool | None = None) -> list[str]:
    """Run some of a campaign's schedules on fresh storage; return what is wrong first.

    Args:
        seed: the campaign's.
        script: which schedules, and what is left of them.
        folder: an empty folder, or one whose ``model`` was written before.
        pool: the prompts and answers, if they are known.
    """
    model = model_of(seed)
    if pool is None:
        prompts = make_prompts(random.Random(seed), VOCABULARY, model.geometry.chunk_tokens)
        pool = Pool(model.make(folder / "model"), prompts, asked_by(script))
    run: Run | None = None
    at = -1
    try:
        for part in script:
            if run is None or part.engine != at:
                if run is not None:
                    run.close()
                at, stage = part.engine, stage_of(seed, part.engine)
                run = Run(model, folder, pool, stage.choice, seed=stage.seed)
            if problems := run.run(part.schedule):
                return problems
    except Exception as error:
        traceback.print_exc()
        return [f"the engine died: {error!r}"]
    finally:
        if run is not None:
            with contextlib.suppress(Exception):
                run.close()
        shutil.rmtree(folder / "cache", ignore_errors=True)
    return []


def main() -> int:
    """Run a campaign, or a script; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--schedules", type=int, help="so many from the first one on")
    what.add_argument("--script", help="these alone, as a shrunk failure is told")
    parser.add_argument("--shared", action="store_true", help="engines share a store that fails as well")
    parser.add_argument("--tries", type=int, default=1, help="times that a script is run, unless it fails")
    arguments = parser.parse_args()
    prepare_process()
    folder = Path(tempfile.mkdtemp(prefix="tutti-differential-"))
    failed = False
    try:
        if arguments.script is not None:
            return _try_script(arguments.seed, from_text(arguments.script), folder, arguments.tries)
        for report in run_campaign(arguments.seed, arguments.schedules, folder, shared=arguments.shared):
            failed |= bool(report.get("problems"))
            print(MARK + json.dumps(report), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(MARK + json.dumps({"death": repr(error)}), flush=True)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def _try_script(seed: int, script: Script, folder: Path, tries: int) -> int:
    for number in range(tries):
        each = folder / str(number)
        each.mkdir()
        if problems := run_script(seed, script, each):
            print("\n".join(problems))
            return 1
    print(f"nothing wrong in {tries} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
