# SPDX-License-Identifier: Apache-2.0
"""Engines for the serving benchmarks, each in a process of its own: vLLM alone, with Tutti, with a peer.

Run as a program this is the other end: it reads what to start and what to ask from standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MARK = "tutti-answers "

CLOSE_SECONDS = 60.0
"""Tutti writes for up to 10 seconds at the end, and vLLM has processes of its own to wait for."""

# vLLM's scheduler and workers run in processes of their own, as in a server. In one process vLLM's loop would
# spin while loads are under way and keep the interpreter from those who do them.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    # By itself vLLM computes with fewer threads without a connector than with one.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # On a GPU: only what the released wheel brings along.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
}


@dataclass(frozen=True)
class Answers:
    """What came of some prompts.

    Attributes:
        seconds: until the last answer.
        first_token_seconds: of each prompt, from when it was given.
        hit_tokens: of each prompt, those that were not computed.
        tokens: of each prompt, the answer.
        token_seconds: of each prompt, from one token to the next, on average; empty where not measured.
    """

    seconds: float
    first_token_seconds: list[float]
    hit_tokens: list[int]
    tokens: list[list[int]]
    token_seconds: list[float] = field(default_factory=list)


def alone() -> None:
    """Return the connector of vLLM alone: none."""
    return


def tutti(root: Path, capacity_bytes: int = 8 << 30, **settings: Any) -> dict[str, Any]:
    """Return the settings of Tutti on a directory."""
    return {
        "kv_connector": "TuttiConnectorV1",
        "kv_connector_module_path": "tutti_vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"capacity_bytes": capacity_bytes, "root": str(root), "strict": True}
        | settings,
    }


def offloading(root: Path, *, host_bytes: int, blocks_per_chunk: int) -> dict[str, Any]:
    """Return the settings of vLLM's OffloadingConnector with its file-system tier on a directory."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tiering_spec",
            "cpu_bytes_to_use": host_bytes,
            "blocks_per_chunk": blocks_per_chunk,
            "secondary_tiers": [{"type": "fs", "root_dir": str(root)}],
        },
    }


def occupied(folder: Path) -> int:
    """Return the bytes that files below a folder take."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def wait_for_quiet(folder: Path) -> None:
    """Wait until a store grows no more: both connectors write on after the last answer."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = occupied(folder)
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


class EngineProcess:
    """A running engine that answers prompts one after the other or all at once."""

    def __init__(
        self,
        model: Path,
        connector: dict[str, Any] | None,
        *,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        arguments: dict[str, Any] = {
            "model": str(model),
            "dtype": "float32",
            "block_size": 32,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "disable_log_stats": False,
            "skip_tokenizer_init": True,
        } | options
        if connector is not None:
            arguments["kv_transfer_config"] = connector
        here = str(Path(__file__).resolve().parent)
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path} | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=1000)
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(arguments)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(MARK):
                self._said.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def ask(
        self, prompts: list[list[int]], max_tokens: int, *, at_once: bool, timeout: float = 3600.0
    ) -> Answers:
        """Return the greedy answers.

        Raises RuntimeError with the engine's output if it ended, or has not answered within ``timeout``
        seconds: then it is killed.
        """
        output: list[str] = []
        deadline = time.monotonic() + timeout
        with contextlib.suppress(BrokenPipeError):  # what it said last is still to be read
            self._send({"prompts": prompts, "max_tokens": max_tokens, "at_once": at_once})
        try:
            while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                if line.startswith(MARK):
                    return Answers(**json.loads(line.removeprefix(MARK)))
                output.append(line)
        except queue.Empty:
            os.killpg(self._process.pid, signal.SIGKILL)  # vLLM's engine is a process of its own
            raise RuntimeError(f"no answer within {timeout:.0f} s, killed:\n{''.join(output)}") from None
        code = self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # its other process would keep the device's memory
            os.killpg(self._process.pid, signal.SIGKILL)
        raise RuntimeError(f"the engine ended with code {code}:\n{''.join(output)}")

    def said(self, word: str = "Tutti:") -> list[str]:
        """Return what the engine printed of late, lines with a word in them."""
        return [line.strip()[-400:] for line in list(self._said) if word in line]

    def forget(self) -> None:
        """Empty vLLM's own prefix cache; a connector keeps what it has."""
        with contextlib.suppress(BrokenPipeError):  # who asks next is told
            self._send({"forget": True})

    def profile(self, *, begin: bool) -> None:
        """Begin or end a trace of torch's profiler, for engines with a ``profiler_config``."""
        with contextlib.suppress(BrokenPipeError):
            self._send({"profile": begin})

    def begin_close(self) -> None:
        """Have the engine end, without waiting for it: several end beside each other."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the engine; one that does not end within ``CLOSE_SECONDS`` is killed."""
        self.begin_close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def answer(llm: Any, prompts: list[list[int]], max_tokens: int, *, at_once: bool) -> Answers:
    """Ask a running engine."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    outputs = []
    begin = time.perf_counter()
    for group in [prompts] if at_once else [[prompt] for prompt in prompts]:
        outputs += llm.generate([{"prompt_token_ids": prompt} for prompt in group], sampling, use_tqdm=False)
    return Answers(
        seconds=time.perf_counter() - begin,
        first_token_seconds=[output.metrics.first_token_latency for output in outputs],
        hit_tokens=[output.num_cached_tokens or 0 for output in outputs],
        tokens=[list(output.outputs[0].token_ids) for output in outputs],
        token_seconds=[
            (output.metrics.last_token_ts - output.metrics.first_token_ts) / max(1, max_tokens - 1)
            for output in outputs
        ],
    )


def main() -> None:
    """Start an engine and answer until standard input ends."""
    from vllm import LLM

    llm = LLM(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        request = json.loads(line)
        if "forget" in request:
            llm.reset_prefix_cache()
            continue
        if "profile" in request:
            llm.start_profile() if request["profile"] else llm.stop_profile()
            continue
        answers = answer(llm, request["prompts"], request["max_tokens"], at_once=request["at_once"])
        print(MARK + json.dumps(asdict(answers)), flush=True)


if __name__ == "__main__":
    main()
