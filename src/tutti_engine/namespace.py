# SPDX-License-Identifier: Apache-2.0
"""What must be equal for stored bytes to be interchangeable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["FORMAT_VERSION", "JSON", "Namespace"]

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"

FORMAT_VERSION = 1
"""Part of every digest: raised when the bytes of a segment or their place in a file change meaning."""

DIGEST_BYTES = 16


def checked_copy(value: object, where: str) -> JSON:
    """Return ``value`` as plain JSON types. Raises TypeError that names the place of anything else."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise TypeError(f"{where} is {value!r}; a namespace takes finite numbers only")
        return value
    if isinstance(value, (list, tuple)):
        return [checked_copy(item, f"{where}[{position}]") for position, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; a namespace takes text keys only")
        return {key: checked_copy(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(f"{where} is a {type(value).__name__}; a namespace takes JSON values only")


class Namespace:
    """Facts about model, cache layout and topology, and the digest that stands for them.

    Two servers share stored bytes exactly when their facts are equal. Facts come from outside, so only the
    digest ever becomes part of a path. Raises TypeError for facts that are not JSON.
    """

    __slots__ = ("_digest", "_text")

    def __init__(self, facts: Mapping[str, Any]) -> None:
        document = {"format_version": FORMAT_VERSION, "facts": checked_copy(facts, "facts")}
        self._text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        self._digest = hashlib.blake2b(self._text.encode("ascii"), digest_size=DIGEST_BYTES).hexdigest()

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of the canonical JSON, 32 lower-case hex digits."""
        return self._digest

    @property
    def facts(self) -> dict[str, JSON]:
        """A copy of the facts."""
        facts: dict[str, JSON] = json.loads(self._text)["facts"]
        return facts

    def to_json(self) -> str:
        """Return facts, format version and digest as indented JSON for people to read."""
        document = {"digest": self._digest, **json.loads(self._text)}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other._digest == self._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Namespace({self._digest})"
