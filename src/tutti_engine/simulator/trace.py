# SPDX-License-Identifier: Apache-2.0
"""Request traces: one JSON object a line, with hashes of the prompt's blocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tutti_engine.errors import TuttiError

__all__ = ["BLOCK_TOKENS", "Request", "TraceError", "read_trace", "unique_blocks", "write_trace"]

BLOCK_TOKENS = 512
"""Tokens that one of ``hash_ids`` stands for (Mooncake's published traces)."""

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


class TraceError(TuttiError, ValueError):
    """A line that is no request. Names the file, the line and the rule."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        seconds: when it came.
        prompt_tokens: length of its prompt.
        output_tokens: length of its answer.
        blocks: an id for each block of the prompt, a last partial one too; equal ids mean equal prefixes.
        tenant: who sent it, None if nobody says. Published traces do not.
    """

    seconds: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    tenant: str | None = None


def read_trace(path: Path | str, *, block_tokens: int = BLOCK_TOKENS) -> list[Request]:
    """Return the requests of a file, in order of time.

    Raises TraceError for a line that is no request, OSError for a file that cannot be read.
    """
    requests = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                requests.append(_request(line, f"{path}:{number}", block_tokens))
    if not requests:
        raise TraceError(f"{path}: there is no request in it")
    requests.sort(key=lambda request: request.seconds)
    return requests


def write_trace(path: Path | str, requests: Iterable[Request]) -> None:
    """Write requests as ``read_trace`` reads them."""
    with open(path, "w", encoding="utf-8") as lines:
        for request in requests:
            values: tuple[object, ...] = (
                round(request.seconds * 1000),
                request.prompt_tokens,
                request.output_tokens,
                list(request.blocks),
            )
            line = dict(zip(FIELDS, values))
            if request.tenant is not None:
                line["tenant"] = request.tenant
            lines.write(json.dumps(line) + "\n")


def unique_blocks(requests: Iterable[Request]) -> int:
    """Return the number of different blocks."""
    return len({block for request in requests for block in request.blocks})


def _request(line: bytes, where: str, block_tokens: int) -> Request:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TraceError(f"{where}: must be an object with {', '.join(FIELDS)}, not {type(found).__name__}")
    for name in FIELDS:
        if name not in found:
            raise TraceError(f"{where}: {name} is missing; a line has {', '.join(FIELDS)}")
    timestamp, prompt, output, blocks = (found[name] for name in FIELDS)
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)) or not 0 <= timestamp < 1e15:
        raise TraceError(f"{where}: timestamp must be milliseconds from 0 on, not {timestamp!r}")
    for name, value in (("input_length", prompt), ("output_length", output)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise TraceError(f"{where}: {name} must be a number of tokens, not {value!r}")
    if not isinstance(blocks, list) or not all(_is_hash(block) for block in blocks):
        raise TraceError(f"{where}: hash_ids must be a list of whole numbers from 0 to 2**64 - 1")
    if len(blocks) != -(-prompt // block_tokens):
        raise TraceError(
            f"{where}: {len(blocks)} hash_ids do not fit an input_length of {prompt} tokens in blocks of"
            f" {block_tokens}"
        )
    tenant = found.get("tenant")
    if tenant is not None and not isinstance(tenant, str):
        raise TraceError(f"{where}: tenant must be a text, not {tenant!r}")
    return Request(timestamp / 1000.0, prompt, output, tuple(blocks), tenant)


def _is_hash(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def chunks_of(blocks: tuple[int, ...], whole: int) -> Iterator[bytes]:
    """Yield a key for each of the first ``whole`` blocks."""
    for block in blocks[:whole]:
        yield block.to_bytes(16, "little")
