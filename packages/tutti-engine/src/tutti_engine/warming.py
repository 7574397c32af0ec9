# SPDX-License-Identifier: Apache-2.0
"""Sends prompts through a running server so that their prefixes are in its store before users come.

Any server with OpenAI's interface; what it says of its cache is read where it shows Tutti's metrics.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tutti_engine.errors import TuttiError

__all__ = ["Ask", "Server", "WarmingError", "WarmingReport", "read_prompts", "warm"]

LINE_BYTES = 64 << 20
"""Of one prompt at most; a million tokens are a few megabytes."""

ANSWER_BYTES = 16 << 20
METRICS_BYTES = 64 << 20

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""Seconds before a request is sent again, doubled from the first to the last."""

TRY_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP's words for a server that may do it later."""

SETTLE_SECONDS, SETTLE_PAUSE = 60.0, 0.25
"""How long stores may take to be reported after the last answer, and how often is looked."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

SHOWN = re.compile(r"^(?:\w+:)?tutti_(\w+?)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class WarmingError(TuttiError, ValueError):
    """A file of prompts that is none, or a server that cannot be asked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt.

    Attributes:
        line: its line in the file.
        path: of the interface that it goes to.
        body: what is sent, but for the model where the file does not name one.
    """

    line: int
    path: str
    body: dict[str, Any]


def read_prompts(lines: Sequence[str], *, plain: bool | None = None) -> list[Ask]:
    """Return the prompts of a file, each once.

    A line is an object of JSON with ``prompt`` (a text or token ids) or ``messages``, whose other keys are
    sent along; an object of OpenAI's batch files; or, in a plain file, a prompt as it is.

    Args:
        lines: the file's; blank ones do not count.
        plain: whether it is a plain one; None for one whose first line is no object.

    Raises WarmingError that names the line.
    """
    asks: dict[str, Ask] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(line) > LINE_BYTES:
            raise WarmingError(f"line {number} is longer than {LINE_BYTES} characters")
        if plain is None:
            plain = not line.lstrip().startswith("{")
        path, body = (COMPLETIONS, {"prompt": line}) if plain else parse(number, line)
        # One token is the least that servers answer; the prompt is computed all the same.
        body |= {"max_tokens": 1, "temperature": 0}
        for key in ("stream", "stream_options", "n", "best_of", "max_completion_tokens", "min_tokens"):
            body.pop(key, None)
        asks.setdefault(json.dumps([path, body], sort_keys=True), Ask(number, path, body))
    if not asks:
        raise WarmingError("there are no prompts in it")
    return list(asks.values())


def parse(number: int, line: str) -> tuple[str, dict[str, Any]]:
    """Return where a line of JSON goes and what is sent. Raises WarmingError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WarmingError(f"line {number} is no JSON: {error}") from None
    if isinstance(found, dict) and isinstance(found.get("body"), dict):
        found = found["body"]
    if not isinstance(found, dict):
        raise WarmingError(f"line {number} is no object of JSON with 'prompt' or 'messages'")
    prompt, messages = found.get("prompt"), found.get("messages")
    if messages is not None and isinstance(messages, list) and prompt is None:
        return CHAT, dict(found)
    numbers = isinstance(prompt, list) and all(type(each) is int for each in prompt)
    if prompt and messages is None and (isinstance(prompt, str) or numbers):
        return COMPLETIONS, dict(found)
    raise WarmingError(f"line {number} needs either 'prompt', a text or token ids, or 'messages', a list")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirection for an error: it would take prompts and the key to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Refused(Exception):
    """An answer that is none. ``later`` says whether, and after how many seconds at least, to ask again."""

    def __init__(self, why: str, later: float | None) -> None:
        super().__init__(why)
        self.later = later


class Server:
    """A server with OpenAI's interface.

    Args:
        url: its base, such as ``http://localhost:8000``; a path ``/v1`` at its end does not matter.
        key: sent as a bearer's token; empty for none.
        timeout: seconds without a byte of an answer.
    """

    def __init__(self, url: str, *, key: str = "", timeout: float = 600.0) -> None:
        if not re.match(r"https?://[^/\s]+", url):
            raise WarmingError(f"{url!r} is no address of a server, such as http://localhost:8000")
        # A file's last line end is no part of it. What HTTP would say of another character names the key.
        key = key.strip()
        if not all("!" <= each <= "~" for each in key):
            raise WarmingError(
                "the server's key has characters that no key has; look at the variable's value"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    def model(self) -> str:
        """Return the first model that it serves. Raises WarmingError when nobody answers there."""
        try:
            found = json.loads(self._open("/v1/models", None, ANSWER_BYTES))
            name = found["data"][0]["id"]
        except (_Refused, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise WarmingError(f"{self.url} does not say which models it serves: {error}") from error
        if not isinstance(name, str):
            raise WarmingError(f"{self.url} names its model {name!r}; give --model")
        return name

    def ask(self, ask: Ask, model: str) -> tuple[int | None, int | None]:
        """Return the tokens of a prompt and how many of them were cached, None where it does not say."""
        body = json.dumps({"model": model} | ask.body).encode()
        try:
            found = json.loads(self._open(ask.path, body, ANSWER_BYTES))
        except (ValueError, RecursionError) as error:
            raise _Refused(f"the answer is no JSON: {error}", None) from error
        usage = found.get("usage") if isinstance(found, dict) else None
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        tokens = usage.get("prompt_tokens")
        return tokens if isinstance(tokens, int) else None, cached if isinstance(cached, int) else None

    def totals(self) -> dict[str, float] | None:
        """Return Tutti's metrics by their names, added up over labels; None where none are shown."""
        try:
            text = self._open("/metrics", None, METRICS_BYTES).decode("utf-8", "replace")
        except _Refused:
            return None
        totals: dict[str, float] = {}
        for name, value in SHOWN.findall(text):
            with suppress(ValueError):
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals or None

    def _open(self, path: str, body: bytes | None, limit: int) -> bytes:
        """Return what the server answers. Raises _Refused for everything else."""
        request = urllib.request.Request(self.url + path, data=body, headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                data: bytes = answer.read(limit + 1)
        except urllib.error.HTTPError as error:
            with error:
                why = error.read(2000).decode("utf-8", "replace").strip()
            later = None
            if error.code in TRY_AGAIN:
                after = error.headers.get("Retry-After", "")
                later = float(after) if after.isdecimal() else 0.0
            raise _Refused(f"HTTP {error.code} {why[:200]}", later) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Refused(f"{type(error).__name__}: {error}", 0.0) from error
        if len(data) > limit:
            raise _Refused(f"the answer is longer than {limit} bytes", None)
        return data


@dataclass(slots=True)
class WarmingReport:
    """What became of the prompts.

    Attributes:
        sent: prompts that were answered.
        failed: line and reason of each that was not.
        retried: requests that were sent again.
        prompt_tokens: tokens of the answered prompts, as the answers say; None where they do not.
        cached_tokens: those of them that the server had, as the answers say.
        seconds: from the first request to the last answer.
        moved: how far Tutti's metrics of the server moved; None where it does not show them. What others
            asked meanwhile is in it.
    """

    sent: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)
    retried: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    seconds: float = 0.0
    moved: dict[str, float] | None = None


class _Sender:
    """Sends one prompt, again where the server may do it later. Any thread may use it."""

    def __init__(self, server: Server, model: str, retries: int, report: WarmingReport) -> None:
        self._server = server
        self._model = model
        self._retries = retries
        self._report = report
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def send(self, ask: Ask) -> None:
        pause = FIRST_PAUSE
        for attempt in range(self._retries + 1):
            try:
                tokens, cached = self._server.ask(ask, self._model)
            except _Refused as refused:
                if refused.later is None or attempt == self._retries or self.stopped.is_set():
                    with self._lock:
                        self._report.failed.append((ask.line, str(refused)))
                    return
                self.stopped.wait(min(LAST_PAUSE, max(pause, refused.later)))
                pause *= 2
                with self._lock:
                    self._report.retried += 1
            else:
                with self._lock:
                    self._report.sent += 1
                    if tokens is not None:
                        self._report.prompt_tokens = (self._report.prompt_tokens or 0) + tokens
                    if cached is not None:
                        self._report.cached_tokens = (self._report.cached_tokens or 0) + cached
                return


def warm(
    server: Server,
    asks: Sequence[Ask],
    *,
    model: str,
    concurrency: int = 4,
    retries: int = 5,
    on_progress: Callable[[int], object] = lambda count: None,
) -> WarmingReport:
    """Send every prompt, so many at a time, and wait until what they store is stored.

    Args:
        server: where to.
        asks: the prompts, see ``read_prompts``.
        model: for those that name none.
        concurrency: requests under way at a time.
        retries: how often one is sent again at most, with growing pauses.
        on_progress: is told how many more prompts are done.
    """
    report = WarmingReport()
    before = server.totals()
    sender = _Sender(server, model, retries, report)
    began = time.monotonic()
    with ThreadPoolExecutor(concurrency, "tutti-warm") as pool:
        try:
            for count in in_turn(pool, sender.send, asks, concurrency):
                on_progress(count)
        except BaseException:
            # Whoever interrupts does not want to wait for pauses.
            sender.stopped.set()
            raise
    report.seconds = time.monotonic() - began
    report.failed.sort()
    if before is not None:
        report.moved = moved_since(before, settled(server))
    return report


def in_turn(
    pool: ThreadPoolExecutor, send: Callable[[Ask], None], asks: Sequence[Ask], concurrency: int
) -> Iterator[int]:
    """Hand a bounded number of prompts to the pool at a time; return now and then how many more are done."""
    running: set[Future[None]] = set()
    for ask in asks:
        if len(running) >= concurrency:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield finished(done)
        running.add(pool.submit(send, ask))
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        yield finished(done)


def finished(done: set[Future[None]]) -> int:
    """Raise what a sender raised, if anything; return how many there are."""
    for each in done:
        each.result()
    return len(done)


def settled(server: Server) -> dict[str, float]:
    """Return the metrics once no store is under way any more, or after a while."""
    deadline = time.monotonic() + SETTLE_SECONDS
    last: dict[str, float] | None = None
    while True:
        now = server.totals() or {}
        # The last step's figures come a moment after its answer.
        if (now == last and not now.get("pending_plans")) or time.monotonic() >= deadline:
            return now
        last = now
        time.sleep(SETTLE_PAUSE)


def moved_since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return how far the totals that people ask for moved."""
    names = ("prompt_tokens", "hit_tokens", "stored_chunks", "loaded_chunks", "dropped_chunks")
    keys = [f"{name}_total" for name in names]
    return {
        name: after.get(key, 0.0) - before.get(key, 0.0)
        for name, key in zip(names, keys)
        if key in after or key in before
    }
