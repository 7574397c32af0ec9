# SPDX-License-Identifier: Apache-2.0
"""Runs one vLLM engine in this process, lets it answer some prompts and says what came out.

``python -m tools.engine_run SPEC`` reads a ``RunSpec`` as JSON and prints the ``Answer`` list as the last
line of its output. The demo and the end-to-end tests start it as a process of its own, as a restart of a
server would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Answer", "RunFailedError", "RunSpec", "engine_options", "run_in_new_process", "store_directory"]

ROOT = Path(__file__).resolve().parent.parent
BLOCK_TOKENS = 32
_SETTLE_SECONDS = 5.0
_MARK = "tutti-answer "


class RunFailedError(RuntimeError):
    """The engine's process ended with an error."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"the engine ended with code {code}:\n{output}")
        self.code = code
        self.output = output


@dataclass(frozen=True)
class RunSpec:
    """What to run.

    Attributes:
        model: directory of the model.
        prompts: token ids of each prompt; they are answered one after the other.
        max_tokens: tokens to answer with.
        connector: Tutti's settings, or None to run vLLM alone.
        options: further arguments for ``vllm.LLM``.
    """

    model: str
    prompts: list[list[int]]
    max_tokens: int = 8
    connector: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What came out for one prompt.

    Attributes:
        tokens: the answer.
        hit_tokens: prompt tokens that were not computed.
        seconds: time to first token.
        counters: how far each of the connector's lifetime counters moved.
    """

    tokens: list[int]
    hit_tokens: int
    seconds: float
    counters: dict[str, int]


def engine_options(spec: RunSpec) -> dict[str, Any]:
    """Return the arguments for ``vllm.LLM``."""
    options: dict[str, Any] = {
        "model": spec.model,
        "dtype": "float32",
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "disable_log_stats": False,
        "skip_tokenizer_init": True,
    }
    if spec.connector is not None:
        options["kv_transfer_config"] = {
            "kv_connector": "TuttiConnectorV1",
            "kv_connector_module_path": "tutti_vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": spec.connector,
        }
    return options | spec.options


def store_directory(root: Path) -> Path | None:
    """Return the one store in a root, None if there is none yet."""
    stores = [path.parent for path in root.glob("*/namespace.json")]
    return stores[0] if len(stores) == 1 else None


def run_in_new_process(
    spec: RunSpec,
    *,
    environment: dict[str, str] | None = None,
    on_answer: Callable[[Answer], None] = lambda answer: None,
    kill_after: int | None = None,
) -> list[Answer]:
    """Run an engine in a process of its own. Raises RunFailedError with the process's output.

    Args:
        spec: what to run.
        environment: variables to set beside the usual ones.
        on_answer: called with each answer as it comes.
        kill_after: number of answers after which all processes of the engine are killed, as by a loss of
            power.
    """
    command = [sys.executable, "-m", "tools.engine_run"]
    variables = os.environ | _ENVIRONMENT | (environment or {})
    output: list[str] = []
    answers: list[Answer] = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asdict(spec)))
        process.stdin.close()
        for line in process.stdout:
            if line.startswith(_MARK):
                answers.append(Answer(**json.loads(line.removeprefix(_MARK))))
                on_answer(answers[-1])
                if len(answers) == kill_after:
                    os.killpg(process.pid, signal.SIGKILL)
                    return answers
            else:
                output.append(line)
    if process.returncode:
        raise RunFailedError(process.returncode, "".join(output))
    return answers


_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _store(spec: RunSpec) -> Path | None:
    root = (spec.connector or {}).get("root")
    return store_directory(Path(root[0] if isinstance(root, list) else root)) if root else None


def _counters(spec: RunSpec) -> dict[str, int]:
    from tutti_engine.catalogue import read_counters

    store = _store(spec)
    return {} if store is None else read_counters(store)


def _settled_counters(spec: RunSpec, prompt: Sequence[int], before: dict[str, int]) -> dict[str, int]:
    """Return the counters once every whole chunk of a new prompt is loaded or stored, or after a while."""
    store = _store(spec)
    if store is None:
        return {}
    facts = json.loads((store / "namespace.json").read_text(encoding="utf-8"))["facts"]
    chunks = (len(prompt) - 1) // (facts["blocks_per_chunk"] * facts["block_tokens"])
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        after = _counters(spec)
        moved = sum(after.get(name, 0) - before.get(name, 0) for name in _ENDINGS)
        if moved >= chunks or time.monotonic() > deadline:
            return after
        time.sleep(0.02)


_ENDINGS = (
    "load_chunks",
    "load_failed_chunks",
    "store_chunks",
    "store_failed_chunks",
    "store_dropped_chunks",
)


def _answer_all(spec: RunSpec, emit: Callable[[Answer], None]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(**engine_options(spec))
    sampling = SamplingParams(temperature=0, max_tokens=spec.max_tokens, ignore_eos=True, detokenize=False)
    before = _counters(spec)
    for prompt in spec.prompts:
        (output,) = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        after = _settled_counters(spec, prompt, before)
        emit(
            Answer(
                tokens=list(output.outputs[0].token_ids),
                hit_tokens=output.num_cached_tokens or 0,
                seconds=output.metrics.first_token_latency,
                counters={name: after[name] - before.get(name, 0) for name in after},
            )
        )
        before = after


def main() -> None:
    """Read a spec from standard input and print one line for each answer."""
    spec = RunSpec(**json.load(sys.stdin))
    _answer_all(spec, lambda answer: print(_MARK + json.dumps(asdict(answer)), flush=True))


if __name__ == "__main__":
    main()
