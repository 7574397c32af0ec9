# SPDX-License-Identifier: Apache-2.0
"""How a batch is ordered with the rest of the program: what it waits for, and what waits for it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tutti_runtime import _core

__all__ = ["Gate", "WordDependency", "native_after", "native_gate", "native_stream", "native_timeout"]

NativeWord: TypeAlias = "tuple[int, int, int]"


@dataclass(frozen=True, slots=True)
class WordDependency:
    """``submit(after=…)``: the batch touches no memory before a 64-bit word has reached ``value``.

    The word is at byte ``offset`` (a multiple of 8) of registered host memory ``memory``. It has reached
    ``value`` when ``(word - value) mod 2**64 < 2**63``, the rule of CUDA's CU_STREAM_WAIT_VALUE_GEQ, so one
    word that only counts up serves many batches. Whoever writes it, CPU or GPU, writes with release order.
    """

    memory: int
    offset: int
    value: int


@dataclass(frozen=True, slots=True)
class Gate:
    """``submit(gate=…)``: a 64-bit word that becomes ``value`` once the batch has its results, always.

    The word is at byte ``offset`` (a multiple of 8) of registered host memory ``memory``; the word behind it,
    at ``offset + 8``, then holds the status: 0, or the errno of the first request, in the order of the batch,
    that was rejected or failed (ETIMEDOUT at the deadline, ECANCELED after ``cancel``). The status is stored
    before the word. The memory stays in use until the gate is open.
    """

    memory: int
    offset: int
    value: int


def _word(name: str, word: WordDependency | Gate) -> NativeWord:
    for field in ("memory", "offset", "value"):
        number = getattr(word, field)
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 1 << 64:
            raise ValueError(f"{name}.{field}={number!r} must be an int from 0 to 2**64 - 1")
    return (int(word.memory), int(word.offset), int(word.value))


def native_after(after: object) -> NativeWord | _core.Dependency | None:
    """Return what the compiled module takes for ``after``. Raises ``TypeError`` and ``ValueError``."""
    if after is None or isinstance(after, _core.Dependency):
        return after
    if isinstance(after, WordDependency):
        return _word("after", after)
    event = getattr(after, "cuda_event", after)
    if isinstance(event, bool) or not isinstance(event, int | np.integer):
        raise TypeError(
            f"after={after!r} must be None, a tutti_runtime.WordDependency or a CUDA event: an int, or an "
            "object with an int named cuda_event"
        )
    if not 0 < event < 1 << 64:
        raise ValueError(f"after={after!r} is no CUDA event; one of torch exists once it was recorded")
    # Held by the batch, and let go by one of the next calls, after the batch has begun.
    return _core.CudaEvent(int(event), None if event is after else after)


def native_gate(gate: object) -> NativeWord | _core.Gate | None:
    """Return what the compiled module takes for ``gate``. Raises ``TypeError`` and ``ValueError``."""
    if gate is None or isinstance(gate, _core.Gate):
        return gate
    if isinstance(gate, Gate):
        return _word("gate", gate)
    raise TypeError(f"gate={gate!r} must be None or a tutti_runtime.Gate")


def native_timeout(timeout: object, count: int) -> float | np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return seconds, or one number for each of ``count`` requests.

    Raises ``TypeError`` and ``ValueError``.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool):
        raise TypeError(f"timeout={timeout!r} must be None, seconds, or seconds for each request")
    if isinstance(timeout, int | float):
        return float(timeout)
    try:
        seconds = np.asarray(timeout, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"timeout={timeout!r} must be None, seconds, or seconds for each request") from error
    if seconds.shape != (count,):
        raise ValueError(
            f"timeout has shape {seconds.shape} and must be seconds, or one number for each of {count} "
            "requests"
        )
    return seconds


def native_stream(stream: object) -> int:
    """Return a stream as a number. Raises ``TypeError`` and ``ValueError``."""
    try:
        number = operator.index(getattr(stream, "cuda_stream", stream))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"stream={stream!r} must be an int or have an int named cuda_stream") from None
    if not 0 <= number < 1 << 64:
        raise ValueError(f"stream={number} must be from 0 to 2**64 - 1")
    return number
