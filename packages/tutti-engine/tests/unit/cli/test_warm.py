# SPDX-License-Identifier: Apache-2.0
"""``tutti warm`` against a server that answers, refuses, is slow, or is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tutti_engine import warming
from tutti_engine.warming import WarmingError, read_prompts


class Server:
    """OpenAI's interface on a port of its own. ``answers`` are taken first, as status, headers and body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.together: threading.Barrier | None = None
        self.shows_metrics = True
        self.pending = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self.answer(200, {"data": [{"id": "tiny"}]})
                elif self.path == "/metrics" and server.shows_metrics:
                    self.answer(200, server.metrics())
                else:
                    self.answer(404, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.asked.append((self.path, body, dict(self.headers)))
                    server.running += 1
                    server.most = max(server.most, server.running)
                    planned = server.answers.pop(0) if server.answers else None
                if server.together is not None:
                    server.together.wait(30)
                with server.lock:
                    server.running -= 1
                status, headers, answer = planned or (200, {}, server.answer_to(body))
                self.answer(status, answer, headers)

            def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer_to(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}}

    def metrics(self) -> bytes:
        count = len(self.asked)
        self.pending = max(0, self.pending - 1)
        return (
            "# TYPE vllm:tutti_stored_chunks_total counter\n"
            f'vllm:tutti_stored_chunks_total{{engine="0",model_name="tiny"}} {2.0 * count}\n'
            f'vllm:tutti_stored_chunks_total{{engine="1",model_name="tiny"}} {1.0 * count}\n'
            f'vllm:tutti_hit_tokens_total{{engine="0"}} {5.0 * count}\n'
            f'vllm:tutti_pending_plans{{direction="store"}} {float(self.pending)}\n'
            "vllm:other_total 7.0\n"
        ).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(warming, "SETTLE_PAUSE", 0.001)


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any) -> Path:
        path = tmp_path / "prompts"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    return write


def test_every_prompt_is_sent_once_for_one_token(tutti, server, prompts, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    file = prompts(
        {"prompt": "one", "stream": True, "max_tokens": 500, "cache_salt": "x"},
        {"prompt": [1, 2, 3], "model": "other"},
        "",
        {"messages": [{"role": "user", "content": "two"}]},
        {"prompt": "one", "cache_salt": "x"},
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "three"}},
    )
    found = tutti("warm", file, "--server", server.url + "/v1/", "--json").document
    asked = sorted(server.asked, key=lambda each: json.dumps(each[1]))
    least = {"max_tokens": 1, "temperature": 0}
    assert sorted((path, json.dumps(body, sort_keys=True)) for path, body, _ in asked) == sorted(
        (path, json.dumps(body | least, sort_keys=True))
        for path, body in (
            ("/v1/completions", {"prompt": "one", "cache_salt": "x", "model": "tiny"}),
            ("/v1/completions", {"prompt": [1, 2, 3], "model": "other"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "two"}], "model": "tiny"}),
            ("/v1/completions", {"prompt": "three", "model": "tiny"}),
        )
    )
    assert {headers["Authorization"] for _, _, headers in asked} == {"Bearer secret"}
    assert (found["prompts"], found["sent"], found["failed"]) == (4, 4, [])
    assert (found["prompt_tokens"], found["cached_tokens"]) == (40, 16)
    assert found["server_moved"] == {"hit_tokens": 20, "stored_chunks": 12}


def test_a_plain_file_has_a_prompt_a_line(tutti, server, prompts):
    file = prompts("first  prompt", "second\u2028 prompt")
    assert "2 of 2 prompts" in tutti("warm", file, "--server", server.url).stdout
    assert {body["prompt"] for _, body, _ in server.asked} == {"first  prompt", "second\u2028 prompt"}
    tutti("warm", prompts('{"looks": "like JSON"}'), "--plain", "--server", server.url)
    assert server.asked[-1][1]["prompt"] == '{"looks": "like JSON"}'


def test_a_dry_run_sends_nothing(tutti, server, prompts):
    found = tutti("warm", prompts("a", "b"), "--dry-run", "--server", server.url, "--json").document
    assert (found["prompts"], found["sent"], found["dry_run"]) == (2, 0, True)
    assert server.asked == []
    tutti("warm", prompts("a", "b"), "--dry-run", "--server", "http://localhost:1")


def test_no_more_than_so_many_at_a_time_and_as_many(tutti, server, prompts):
    server.together = threading.Barrier(3)
    found = tutti("warm", prompts(*"abcdef"), "-c", 3, "--server", server.url, "--json").document
    assert found["sent"] == 6 and server.most == 3


def test_what_a_server_may_do_later_is_sent_again(tutti, server, prompts):
    server.answers = [(503, {}, {}), (429, {"Retry-After": "0"}, {}), (500, {"Retry-After": "soon"}, {})]
    found = tutti("warm", prompts("a"), "--server", server.url, "--json").document
    assert (found["sent"], found["retried"], len(server.asked)) == (1, 3, 4)


def test_a_refusal_is_told_with_its_line_and_costs_no_other(tutti, server, prompts):
    server.answers = [(400, {}, {"error": "too long\x1b[31m"})]
    file = prompts("", "a", "b")
    found = tutti("warm", file, "-c", 1, "--server", server.url, "--json", code=1).document
    assert found["sent"] == 1 and [each["line"] for each in found["failed"]] == [2]
    assert "HTTP 400" in found["failed"][0]["reason"]
    server.answers = [(503, {}, {})] * 3
    shown = tutti("warm", prompts("a"), "--retries", 2, "--server", server.url, code=1).stdout
    assert "HTTP 503" in shown and "line 1" in shown and "\x1b" not in shown


def test_a_redirection_does_not_take_the_key_elsewhere(tutti, server, prompts, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    other = Server()
    try:
        server.answers = [
            (307, {"Location": other.url + "/v1/completions"}, {}),
            (302, {"Location": other.url}, {}),
        ]
        tutti("warm", prompts("a", "b"), "--server", server.url, code=1)
        assert other.asked == []
    finally:
        other.close()


def test_a_key_that_no_header_can_hold_is_not_shown(tutti, server, prompts, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")  # as read from a file
    assert tutti("warm", prompts("a"), "--server", server.url, "--json").document["sent"] == 1
    for key in ("sk-secret\r\nX-More: 1", "sk-secret\N{EURO SIGN}"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        refused = tutti("warm", prompts("a"), "--server", server.url, code=2)
        assert "sk-secret" not in refused.output and "variable" in refused.stderr


def test_an_answer_that_is_none_is_a_failure(tutti, server, prompts):
    server.answers = [(200, {}, b"<html>"), (200, {}, [1]), (200, {}, {"usage": {"prompt_tokens": "many"}})]
    found = tutti("warm", prompts(*"abc"), "-c", 1, "--server", server.url, "--json", code=1).document
    assert [each["line"] for each in found["failed"]] == [1]
    assert (found["sent"], found["prompt_tokens"]) == (2, None)


def test_it_waits_for_what_is_still_being_stored(tutti, server, prompts):
    server.pending = 5
    tutti("warm", prompts("a"), "--server", server.url)
    assert server.pending == 0


def test_a_server_without_metrics_is_warmed_all_the_same(tutti, server, prompts):
    server.shows_metrics = False
    found = tutti("warm", prompts("a"), "--server", server.url, "--json").document
    assert found["sent"] == 1 and found["server_moved"] is None
    assert "not known" in tutti("warm", prompts("a"), "--server", server.url).stdout


def test_no_server_and_no_prompts_are_told_in_one_line(tutti, tmp_path, prompts):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    for arguments, words in (
        ((prompts("a"), "--server", url), url),
        ((tmp_path / "prompts", "--server", "localhost:8000"), "no address"),
        ((tmp_path / "prompts", "--server", "file:///etc/passwd"), "no address"),
        ((tmp_path / "missing",), "missing"),
    ):
        refused = tutti("warm", *arguments, code=2)
        assert words in refused.stderr and refused.stderr.count("\n") == 1
    assert "no prompts" in tutti("warm", prompts("", " "), code=2).stderr
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    tutti("warm", tmp_path / "binary", code=2)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "{}",
        '{"prompt": ""}',
        '{"prompt": [1, "a"]}',
        '{"prompt": [true]}',
        '{"prompt": ["a", "b"]}',
        '{"messages": "hi"}',
        '{"prompt": "a", "messages": []}',
        '{"body": 3}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_prompt_is_named(line):
    with pytest.raises(WarmingError, match="line 2"):
        read_prompts(['{"prompt": "a"}', line])
