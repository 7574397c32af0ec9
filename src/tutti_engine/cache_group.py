# SPDX-License-Identifier: Apache-2.0
"""Layers that share a block table, and which part of a prefix they still need."""

from __future__ import annotations

from dataclasses import dataclass

from tutti_engine.errors import GeometryError

__all__ = ["CacheGroup"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of one rank whose pages are found through one block table.

    A group is full attention unless it has a ``window`` or a ``span``.

    Attributes:
        layers: numbers of its layers on this rank, 0 for the rank's first segment; none where all of the
            group's layers are another rank's.
        block_tokens: tokens of one of its blocks.
        page_bytes: bytes of one (layer, block) page, K and V together.
        window: sliding window in tokens, the one that attends included.
        span: chunked local attention: tokens attend inside their own span of so many tokens.
    """

    layers: tuple[int, ...]
    block_tokens: int
    page_bytes: int
    window: int | None = None
    span: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_tokens", "page_bytes", "window", "span"):
            value = getattr(self, name)
            optional = name in ("window", "span")
            if optional and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GeometryError(f"{name} must be a positive whole number, not {value!r}")
        if self.window is not None and self.span is not None:
            raise GeometryError(f"a group has a window ({self.window}) or a span ({self.span}), not both")

    @property
    def is_partial(self) -> bool:
        """Whether a long prefix's first tokens are not needed."""
        return self.window is not None or self.span is not None

    def first_needed(self, tokens: int) -> int:
        """Return the first token whose KV is needed to go on after ``tokens`` tokens.

        The next token has number ``tokens`` and sees itself: of a window of W tokens only W - 1 lie before
        it. Servers free whole blocks below this token, and only those.
        """
        if self.window is not None:
            return max(0, tokens - self.window + 1)
        return 0 if self.span is None else tokens - tokens % self.span
