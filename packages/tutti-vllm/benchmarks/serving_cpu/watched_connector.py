# SPDX-License-Identifier: Apache-2.0
"""Connectors that write down what their callbacks cost and when each phase of a load or store was.

Named in ``kv_connector_module_path``, with the file in the environment variable ``TUTTI_WATCH``: one line of
JSON for each request that ends, all totals up to then in it. For one process with scheduler and worker, as
vLLM has it with one device. Times are microseconds of the epoch, as in the traces of torch's profiler.

A file that ``TUTTI_KNOBS`` names may change what is tried while the engine runs: ``rest`` (seconds of an idle
step), ``mover`` (``kernel`` or ``copy_engine``) and ``sms`` of pages on a device. It is looked at when a
request arrives. ``TUTTI_THREADS`` is the number of threads that read files in memory, from the start.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nothing_connector import NothingConnector

import tutti_runtime
from tutti_engine.backends import local
from tutti_engine.execution.load_pipeline import LoadPipeline
from tutti_engine.execution.store_pipeline import StorePipeline
from tutti_vllm.connector_v1 import TuttiConnectorV1
from tutti_vllm.worker_side import worker

__all__ = ["WATCH", "WatchedNothing", "WatchedTutti"]

CALLBACKS = [
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "get_kv_connector_stats",
    "take_events",
    "has_pending_push_work",
    "request_finished_all_groups",
    "handle_preemptions",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
    "clear_connector_metadata",
]

PHASES = {
    LoadPipeline: {
        "_start_wave": "submit reads",
        "_take": "wait for reads",
        "_scatter": "start scatter",
        "_await": "wait for scatter",
    },
    StorePipeline: {"_copy_some": "gather", "_write": "submit writes", "_finish": "wait for writes"},
}
"""Methods of the engine's pipelines, each called once a batch, and what they do."""


class Watch:
    """What was seen so far."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {}
        self.spans: list[tuple[str, str, float, float]] = []
        self.requests: dict[str, dict[str, float]] = {}

    def note(self, request_id: str, event: str) -> None:
        """Note when something first happened to a request."""
        self.requests.setdefault(request_id, {}).setdefault(event, now())

    def write(self, request_id: str) -> None:
        """Write a line, and forget spans."""
        spans, self.spans = self.spans, []
        line = {
            "request": request_id,
            "events": self.requests.pop(request_id, {}),
            "calls": {name: [len_, total] for name, (len_, total) in self.calls.items()},
            "spans": spans,
        }
        with open(os.environ["TUTTI_WATCH"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


WATCH = Watch()


class Knobs:
    """What is tried, from a file."""

    def __init__(self) -> None:
        self._last = ""

    def turn(self) -> None:
        """Apply what the file says, if it says anything new."""
        path = Path(os.environ.get("TUTTI_KNOBS", os.devnull))
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text == self._last:
            return
        self._last = text
        wanted = json.loads(text)
        worker.REST_SECONDS = float(wanted.get("rest", REST_SECONDS))
        for side in list(worker._here):
            for way in ("_loads", "_stores"):
                self._turn_side(getattr(side._mover, way, None), wanted)

    def _turn_side(self, side: Any, wanted: dict[str, Any]) -> None:
        """Change how pages of a device are moved in one direction."""
        if not hasattr(side, "transfer"):
            return
        first = vars(side).setdefault("_first", (side.mover, side.transfer.num_sms))
        side.mover = type(first[0])(wanted["mover"]) if "mover" in wanted else first[0]
        side.transfer.num_sms = wanted.get("sms", first[1])


KNOBS = Knobs()
REST_SECONDS = worker.REST_SECONDS


def now() -> float:
    """Microseconds of the epoch."""
    return time.time_ns() / 1e3


def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Count a callback's calls and add up their microseconds of computing in the calling thread."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            entry = WATCH.calls.setdefault(name, [0, 0.0])
            entry[0] += 1
            entry[1] += (time.thread_time() - begin) * 1e6

    return wrapped


def spanned(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Note when a method ran, and in which thread."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begin = now()
        try:
            return method(*args, **kwargs)
        finally:
            WATCH.spans.append((name, threading.current_thread().name, begin, now() - begin))

    return wrapped


class _Noted:
    """Notes the events of requests around the callbacks of the class behind it."""

    def on_new_request(self, request: Any) -> None:
        KNOBS.turn()
        WATCH.note(request.request_id, "arrived")
        super().on_new_request(request)  # type: ignore[misc]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            WATCH.note(request.request_id, "load planned")
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        for request_id in scheduler_output.num_scheduled_tokens:
            events = WATCH.requests.get(request_id, {})
            if "computing" not in events:
                WATCH.note(request_id, "computing")
            else:
                WATCH.note(request_id, "second step")
        return super().build_connector_meta(scheduler_output)  # type: ignore[misc]

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        found = super().get_transfer_results(finished_req_ids)  # type: ignore[misc]
        for request_id in found.finished_recving or ():
            WATCH.note(request_id, "load told by the worker")
        return found

    def update_connector_output(self, connector_output: Any) -> None:
        for request_id in connector_output.finished_recving or ():
            WATCH.note(request_id, "load known to the scheduler")
        super().update_connector_output(connector_output)  # type: ignore[misc]

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        WATCH.note(request.request_id, "finished")
        WATCH.write(request.request_id)
        return super().request_finished_all_groups(request, block_ids)  # type: ignore[misc]


class WatchedNothing(_Noted, NothingConnector):
    """Does nothing, and says what that costs."""


class WatchedTutti(_Noted, TuttiConnectorV1):
    """Tutti's connector, watched."""


for _base in (NothingConnector, TuttiConnectorV1):
    for _name in CALLBACKS:
        # Around the connector's own method, not around the notes.
        setattr(_base, _name, counted(_name, getattr(_base, _name)))
for _pipeline, _methods in PHASES.items():
    for _name, _what in _methods.items():
        setattr(_pipeline, _name, spanned(_what, getattr(_pipeline, _name)))
if "TUTTI_THREADS" in os.environ:
    local.make_runtime = lambda layout: tutti_runtime.make_file_runtime(
        data_path="posix", direct="off", threads=int(os.environ["TUTTI_THREADS"])
    )
