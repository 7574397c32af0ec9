# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of loads and stores, where the process records any: one a plan, none in a layer's path.

The scheduler's side makes them: it knows the requests, and hears from every rank how a plan ended. What a
span holds is in docs/metrics.md.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tutti_engine import LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.execution.executor import Result
from tutti_engine.severity import worse
from tutti_engine.shared.tier import is_shared_plan
from tutti_vllm.metrics.meters import ERROR_KINDS

if TYPE_CHECKING:
    from tutti_vllm.scheduler_side.tracked import Request

__all__ = ["INSTRUMENTATION", "TransferSpans", "find_tracer"]

logger = logging.getLogger(__name__)

INSTRUMENTATION = "tutti_vllm"
"""The name by which tracers are told apart."""


def find_tracer(vllm_config: Any) -> Any | None:
    """Return a tracer if this process records spans; None if it does not, or has no OpenTelemetry.

    It does when vLLM was told where traces go (``--otlp-traces-endpoint``), or when somebody else has set a
    provider, such as the agent ``opentelemetry-instrument``. Nothing is imported that is not there yet.
    """
    config = getattr(vllm_config, "observability_config", None)
    asked = getattr(config, "otlp_traces_endpoint", None) is not None
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or "opentelemetry.sdk.trace" not in sys.modules:
        # vLLM imports both when they are installed.
        return None
    if not asked and type(trace.get_tracer_provider()).__name__ in (
        "ProxyTracerProvider",
        "NoOpTracerProvider",
    ):
        return None
    return trace.get_tracer(INSTRUMENTATION)


@dataclass(slots=True)
class _Open:
    span: Any
    chunks: int
    ranks_left: int
    told: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    moved: int = 0
    errno: int = 0


class TransferSpans:
    """Begins a span with each plan and ends it when the last rank has reported. Never raises.

    Args:
        tracer: of OpenTelemetry's API.
        chunk_tokens: tokens of one chunk.
        load_ranks: how many ranks report a load.
        store_ranks: how many report a store.
    """

    def __init__(self, tracer: Any, *, chunk_tokens: int, load_ranks: int, store_ranks: int) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._trace = trace
        # The one that vLLM reads requests' headers with.
        self._extract = TraceContextTextMapPropagator().extract
        self._chunk_tokens = chunk_tokens
        self._load_ranks = load_ranks
        self._store_ranks = store_ranks
        self._open: dict[int, _Open] = {}

    def begin_load(self, plan: LoadPlan, request: Request, *, tokens: int, layerwise: bool) -> None:
        """Begin the span of a load, as a child of its request's."""
        attributes = {
            "gen_ai.request.id": request.request_id,
            "tutti.tokens": tokens,
            "tutti.mode": "layerwise" if layerwise else "async",
        }
        try:
            self._begin("tutti load", plan, attributes, [request], self._load_ranks)
        except Exception:
            logger.exception("Tutti: a load has no span.")

    def begin_store(self, plan: StorePlan, requests: Iterable[Request]) -> None:
        """Begin the span of a store: a child of the one request's, or linked with all of them."""
        attributes = {"tutti.tokens": len(plan.transfers) * self._chunk_tokens}
        try:
            self._begin("tutti store", plan, attributes, list(requests), self._store_ranks)
        except Exception:
            logger.exception("Tutti: a store has no span.")

    def take(self, rank: int, result: Result) -> None:
        """Take one rank's report; the last one ends the span."""
        try:
            self._take(rank, result)
        except Exception:
            logger.exception("Tutti: a span is lost.")

    def close(self) -> None:
        """End what nobody will report any more."""
        while self._open:
            _, each = self._open.popitem()
            try:
                each.span.set_attribute("tutti.outcome", "unknown")
                each.span.end()
            except Exception:
                logger.exception("Tutti: a span is lost.")

    def _begin(
        self,
        name: str,
        plan: LoadPlan | StorePlan,
        attributes: Mapping[str, Any],
        requests: list[Request],
        ranks: int,
    ) -> None:
        contexts = [self._extract(headers) for headers in map(_headers, requests) if headers]
        found = [self._trace.get_current_span(context).get_span_context() for context in contexts]
        alone = len(requests) == 1 and len(contexts) == 1
        span = self._tracer.start_span(
            name,
            # An empty one where there is no parent: what the calling thread happens to trace is not it.
            context=contexts[0] if alone else self._extract({}),
            links=[] if alone else [self._trace.Link(each) for each in found if each.is_valid],
            attributes={
                **attributes,
                "tutti.chunks": len(plan.transfers),
                "tutti.tier": "shared" if is_shared_plan(plan.plan_id) else "local",
            },
        )
        self._open[plan.plan_id] = _Open(span, len(plan.transfers), ranks)

    def _take(self, rank: int, result: Result) -> None:
        each = self._open.get(result.plan_id)
        if each is None or rank in each.told:
            return
        if isinstance(result, LoadResult):
            each.failed.update(result.failed)
            each.moved += result.bytes_read
        elif isinstance(result, StoreResult):
            each.failed.update(position for position, sums in enumerate(result.checksums) if sums is None)
            each.moved += result.bytes_written
        else:
            return
        each.told.add(rank)
        each.errno = worse(each.errno, result.errno)
        each.ranks_left -= 1
        if not each.ranks_left:
            del self._open[result.plan_id]
            self._end(each)

    def _end(self, each: _Open) -> None:
        failed = len(each.failed)
        outcome = "ok" if not failed else "failed" if failed >= each.chunks else "partial"
        each.span.set_attributes(
            {"tutti.bytes": each.moved, "tutti.outcome": outcome, "tutti.failed_chunks": failed}
        )
        if failed:
            kind = ERROR_KINDS.get(each.errno) or errno.errorcode.get(each.errno, str(each.errno))
            each.span.set_attribute("error.type", kind)
            each.span.set_status(self._trace.StatusCode.ERROR, f"{failed} chunks: {kind}")
        each.span.end()


def _headers(request: Request) -> Mapping[str, str] | None:
    headers: Mapping[str, str] | None = getattr(request, "trace_headers", None)
    return headers
