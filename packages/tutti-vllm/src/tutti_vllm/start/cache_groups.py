# SPDX-License-Identifier: Apache-2.0
"""Reads vLLM's KV cache groups: which layers share a block table, how large pages are, what a window keeps.

A kind of layer that is not known here is refused by its name: what its pages mean decides whether a hit is
right.
"""

from __future__ import annotations

import re
from typing import Any

from tutti_engine import CacheGroup, Geometry
from tutti_vllm.start.unsupported import UnsupportedError

__all__ = ["check_groups", "layer_names", "loses_whole_requests", "read_groups"]

_FULL = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_WINDOW = frozenset({"SlidingWindowSpec", "SlidingWindowMLASpec"})
_SPAN = frozenset({"ChunkedLocalAttentionSpec"})

_WHY = {
    "MambaSpec": "keeps a running state instead of pages of tokens",
    "CrossAttentionSpec": "keeps what an encoder made of the whole input",
    "EncoderOnlyAttentionSpec": "keeps nothing that a later request could use",
    "HiddenStateCacheSpec": "keeps hidden states for a reader outside",
    "SinkFullAttentionSpec": "keeps sink tokens in blocks of its own",
    "RSWASpec": "lets tokens see less of a prompt's answer than of the prompt",
}


def layer_names(kv_cache_config: Any) -> list[str]:
    """Return the names of a worker's layers, in the order of their segments.

    One group has them as vLLM lists them. Those of several are put into the model's order by the numbers in
    their names, so that what is read first is needed first.
    """
    groups = [list(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    if len(groups) == 1:
        return groups[0]
    return sorted((name for names in groups for name in names), key=_by_number)


def read_groups(kv_cache_config: Any) -> tuple[CacheGroup, ...]:
    """Return the groups of one worker.

    Raises UnsupportedError that names the group, its first layer and its kind.
    """
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise UnsupportedError("the model has no layers with a KV cache")
    number_of = {name: number for number, name in enumerate(layer_names(kv_cache_config))}
    return tuple(_read(number, group, number_of) for number, group in enumerate(groups))


def loses_whole_requests(geometry: Geometry) -> bool:
    """Return whether a block that failed to load costs the whole request.

    vLLM goes back to the first bad block only where every request has one list of blocks. Where windows leave
    out what lies before them it must not: nothing before that block could be attended to any more.
    """
    return len(geometry.groups) > 1 or geometry.is_partial


def check_groups(geometry: Geometry) -> None:
    """Raise UnsupportedError, on the scheduler's side, for groups that could not be served."""
    for number, group in enumerate(geometry.groups):
        if group.is_partial and not group.layers:
            raise UnsupportedError(
                f"KV cache group {number} has no layer in the first pipeline stage, where Tutti looks what of"
                " it is stored; use fewer stages or another VLLM_PP_LAYER_PARTITION"
            )


def _read(number: int, group: Any, number_of: dict[str, int]) -> CacheGroup:
    names = list(group.layer_names)
    where = f"KV cache group {number}" + (f" ({names[0]!r} and {len(names) - 1} more)" if names else "")
    spec = _common_spec(group.kv_cache_spec, where)
    kind = type(spec).__name__
    if kind not in _FULL | _WINDOW | _SPAN:
        why = _WHY.get(kind, "is of a kind that this release does not know")
        raise UnsupportedError(f"{where} {why} ({kind}), which Tutti does not store")
    if getattr(spec, "non_causal", False):
        # vLLM itself reuses no prefix of such a model.
        raise UnsupportedError(f"{where} lets tokens see later ones ({kind}); Tutti does not store it")
    if not getattr(group, "enable_kv_transfer", True) or getattr(group, "host_resident", False):
        raise UnsupportedError(f"{where} is no KV that connectors may move; Tutti does not store it")
    if not getattr(spec, "prefix_cacheable", True) or getattr(spec, "prefix_replay_tokens", 0) > 0:
        raise UnsupportedError(
            f"{where} is computed again after each prefix hit ({kind}), which Tutti does not do"
        )
    window = None
    if kind in _WINDOW:
        # Some drafters read a few tokens further back than attention does.
        window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
    return CacheGroup(
        layers=tuple(sorted(number_of[name] for name in names)),
        block_tokens=spec.block_size,
        page_bytes=_page_bytes(spec),
        window=window,
        span=spec.attention_chunk_size if kind in _SPAN else None,
    )


def _common_spec(spec: Any, where: str) -> Any:
    """Return the one spec of a group whose layers may each have their own."""
    specs = getattr(spec, "kv_cache_specs", None)
    if not specs:
        return spec
    pages = sorted({_page_bytes(one) for one in specs.values()})
    kinds = sorted({type(one).__name__ for one in specs.values()})
    if len(pages) > 1 or len(kinds) > 1:
        # vLLM's scheduler is told of one layer only, so it could not lay out segments of several sizes.
        raise UnsupportedError(
            f"{where} has pages of {pages} bytes ({', '.join(kinds)}); Tutti supports one size in a group"
        )
    return next(iter(specs.values()))


def _page_bytes(spec: Any) -> int:
    """Return the bytes of a page that mean something; what pads it to another group's size is not moved."""
    for name in ("unpadded_page_size_bytes", "real_page_size_bytes", "page_size_bytes"):
        size = getattr(spec, name, None)
        if size is not None:
            return int(size)
    raise UnsupportedError(f"{type(spec).__name__} does not say how large its pages are")


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
