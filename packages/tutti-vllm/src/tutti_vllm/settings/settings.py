# SPDX-License-Identifier: Apache-2.0
"""What a user may write into ``kv_connector_extra_config``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tutti_engine import PolicySettings
from tutti_vllm.scheduler_side.load_mode import LOAD_MODES
from tutti_vllm.settings.shared import SharedSettings

__all__ = ["Settings", "SettingsError", "check_known", "known_settings"]

_EXAMPLE = '"kv_connector_extra_config": {"capacity_bytes": 100000000000, "root": "/mnt/nvme0/tutti"}'


class SettingsError(ValueError):
    """A setting that is missing, unknown, of the wrong type or out of range."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's settings.

    Attributes:
        capacity_bytes: most bytes that the cache may take on disk, over all roots and ranks.
        roots: directories that share the data; with several, each should be a drive of its own.
        blocks_per_chunk: vLLM blocks of one chunk; 0 chooses (segments of at least 256 KiB).
        policies: who is stored, who stays and who goes; its settings are keys of their own.
        shared: a store that several servers share; its settings are keys of their own.
        strict: whether a cache that cannot be opened stops the server instead of being left out.
        min_free_bytes: what the roots' file systems keep free; below it nothing is stored and chunks are
            given back.
        prepare: ``sparse``, ``fallocate`` or ``written``: how room on disk is made ahead of need.
        reclaim_unused_days: stores of other models and configurations that nobody used for so many days are
            removed when the server starts; 0 never removes any.
        read_only: whether another server's store is read and never changed.
        replicas: equal servers that run side by side and share the capacity; 0 takes vLLM's
            ``data_parallel_size``.
        nvtx: whether transfers show as NVTX ranges in a profiler; so they do with ``TUTTI_NVTX=1`` in the
            environment.
        log_interval_seconds: how often one line tells what the cache did, if it did anything; 0 never.
        load_mode: ``auto``, ``async`` or ``layerwise``: whether a request waits for its load beside the
            server's steps, or its first step waits for each layer. ``layerwise`` makes vLLM do without full
            CUDA graphs; ``auto`` chooses by measured times and changes nothing about graphs.
        break_even: whether a hit that takes longer to load than to compute is left alone.
        max_loading_bytes: bytes a rank that may be on their way to the KV cache at a time; further hits wait
            for their turn. One load may always start.
    """

    capacity_bytes: int
    roots: tuple[Path, ...]
    blocks_per_chunk: int = 0
    strict: bool = False
    min_free_bytes: int = 0
    prepare: str = "sparse"
    reclaim_unused_days: int = 0
    read_only: bool = False
    replicas: int = 0
    log_interval_seconds: int = 60
    nvtx: bool = False
    load_mode: str = "auto"
    break_even: bool = True
    max_loading_bytes: int = 1 << 30
    policies: PolicySettings = field(default_factory=PolicySettings)
    shared: SharedSettings = field(default_factory=SharedSettings)

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> Settings:
        """Check the mapping and fill in defaults. Raises SettingsError that names the key and the rule."""
        check_known(extra, "kv_connector_extra_config")
        if "capacity_bytes" not in extra:
            raise SettingsError(
                "capacity_bytes is missing: say how much disk the cache may use, for example " + _EXAMPLE
            )
        return cls(
            capacity_bytes=_whole_number(extra, "capacity_bytes", minimum=1),
            roots=_roots(extra),
            blocks_per_chunk=_whole_number(extra, "blocks_per_chunk", minimum=0, default=0),
            strict=_truth(extra, "strict", default=False),
            min_free_bytes=_whole_number(extra, "min_free_bytes", minimum=0, default=0),
            prepare=_choice(extra, "prepare", ("sparse", "fallocate", "written")),
            reclaim_unused_days=_whole_number(extra, "reclaim_unused_days", minimum=0, default=0),
            read_only=_truth(extra, "read_only", default=False),
            replicas=_whole_number(extra, "replicas", minimum=0, default=0),
            nvtx=_truth(extra, "nvtx", default=False),
            log_interval_seconds=_whole_number(extra, "log_interval_seconds", minimum=0, default=60),
            load_mode=_choice(extra, "load_mode", LOAD_MODES),
            break_even=_truth(extra, "break_even", default=True),
            max_loading_bytes=_whole_number(extra, "max_loading_bytes", minimum=1, default=1 << 30),
            policies=_policies(extra),
            shared=_shared(extra),
        )


def known_settings() -> tuple[str, ...]:
    """Return the keys that a user may write."""
    own = (each.name for each in fields(Settings) if each.name not in ("roots", "policies", "shared"))
    return ("root", *own, *PolicySettings.names(), *SharedSettings.names())


def check_known(given: Mapping[str, Any], where: str) -> None:
    """Raise SettingsError for a key that is no setting; it names the nearest one and where it was written."""
    known = known_settings()
    for key in given:
        if key not in known:
            raise SettingsError(_unknown(key, known, where))


def _unknown(key: object, known: tuple[str, ...], where: str) -> str:
    nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known settings are {', '.join(known)}"
    return f"unknown setting {key!r} in {where}: {hint}"


def _whole_number(extra: Mapping[str, Any], key: str, *, minimum: int, default: int | None = None) -> int:
    value = extra.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        example = ", in bytes, such as 100000000000" if key == "capacity_bytes" else ""
        raise SettingsError(f"{key} must be a whole number{example}, not {value!r} ({type(value).__name__})")
    if value < minimum:
        raise SettingsError(f"{key} must be at least {minimum}, not {value}")
    return value


def _choice(extra: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    """Return one of some texts, the first by default."""
    value = extra.get(key, known[0])
    if value not in known:
        raise SettingsError(f"{key} must be one of {', '.join(known)}, not {value!r}")
    return str(value)


def _truth(extra: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = extra.get(key, default)
    if not isinstance(value, bool):
        raise SettingsError(f"{key} must be true or false, not {value!r} ({type(value).__name__})")
    return value


def _policies(extra: Mapping[str, Any]) -> PolicySettings:
    try:
        return PolicySettings.parse({name: extra[name] for name in PolicySettings.names() if name in extra})
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _shared(extra: Mapping[str, Any]) -> SharedSettings:
    try:
        return SharedSettings.parse(extra)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _roots(extra: Mapping[str, Any]) -> tuple[Path, ...]:
    value = extra.get("root")
    if value is None and "root" not in extra:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return (Path(cache).expanduser() / "tutti",)
    names = [value] if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise SettingsError(f"root must be a path or a list of paths, not {value!r} ({type(value).__name__})")
    roots = []
    for name in names:
        if not isinstance(name, (str, os.PathLike)) or not str(name) or "\0" in str(name):
            raise SettingsError(f"root must be a path or a list of paths; {name!r} is no path")
        path = Path(name).expanduser()
        if not path.is_absolute():
            raise SettingsError(f"root must be an absolute path, not {str(name)!r}")
        roots.append(path)
    if len(set(roots)) != len(roots):
        raise SettingsError(f"root names a directory twice: {', '.join(map(str, roots))}")
    return tuple(roots)
