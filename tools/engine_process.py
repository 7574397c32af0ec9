# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in processes of its own: what the demo and the end-to-end tests start, stop and kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = [
    "ANSWER_MARK",
    "ENVIRONMENT",
    "Answer",
    "EngineFailedError",
    "EngineProcess",
    "EngineSpec",
    "store_directory",
]

ROOT = Path(__file__).resolve().parent.parent

ANSWER_MARK = "tutti-answer "
"""Begins the lines of the engine's output that carry an answer."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    # By itself vLLM keeps one core free without a connector and a second one with it: on few cores the two
    # would compute with different numbers of threads, and their times could not be compared.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class EngineFailedError(RuntimeError):
    """The engine's process ended by itself."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"the engine ended with code {code}:\n{output}")
        self.code = code
        self.output = output


@dataclass(frozen=True)
class EngineSpec:
    """What to start.

    Attributes:
        model: directory of the model.
        connector: Tutti's settings, or None to run vLLM alone.
        options: further arguments for ``vllm.LLM``.
    """

    model: str
    connector: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return all arguments for ``vllm.LLM``."""
        arguments: dict[str, Any] = {
            "model": self.model,
            "dtype": "float32",
            "block_size": 32,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "disable_log_stats": False,
            "skip_tokenizer_init": True,
        }
        if self.connector is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "TuttiConnectorV1",
                "kv_connector_module_path": "tutti_vllm.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": self.connector,
            }
        return arguments | self.options

    @property
    def root(self) -> Path | None:
        """The first directory that the settings name."""
        root = (self.connector or {}).get("root")
        return None if root is None else Path(root[0] if isinstance(root, list) else root)


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


class EngineProcess:
    """A running engine. Prompts are answered one after the other.

    By default vLLM runs as it does by itself, scheduler and workers in processes of their own.
    """

    def __init__(self, spec: EngineSpec, *, one_process: bool = False, **environment: str) -> None:
        """Start the engine; ``answer`` waits until it is there.

        Args:
            spec: what to start.
            one_process: keep scheduler and worker in one process, which starts sooner.
            environment: further environment variables.
        """
        processes = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1"}
        self._output: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.engine_child"],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | processes | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._send(asdict(spec))

    def answer(self, prompt: Sequence[int], max_tokens: int = 8) -> Answer:
        """Return the greedy answer. Raises EngineFailedError with the process's output if it ended."""
        self._send({"prompt": list(prompt), "max_tokens": max_tokens})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER_MARK):
                return Answer(**json.loads(line.removeprefix(ANSWER_MARK)))
            self._output.append(line)
        raise EngineFailedError(self._process.wait(), self.output)

    @property
    def output(self) -> str:
        """What the engine has printed up to its last answer."""
        return "".join(self._output)

    def close(self) -> None:
        """Let the engine end as a server does when it is told to."""
        self._process.communicate()

    def kill(self) -> None:
        """End all its processes at once, as a loss of power would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It ended already; ``answer`` finds out how.
            return

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()


def store_directory(root: Path) -> Path | None:
    """Return the one store in a root, None if there is none yet."""
    stores = [path.parent for path in root.glob("*/namespace.json")]
    return stores[0] if len(stores) == 1 else None
