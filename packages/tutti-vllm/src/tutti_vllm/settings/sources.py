# SPDX-License-Identifier: Apache-2.0
"""Where settings come from: ``kv_connector_extra_config``, then the environment, then a file, then defaults.

The one place that knows this order. Every process of a server works it out for itself, so environment and
file have to be the same for all of them.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tutti_engine import PolicySettings
from tutti_vllm.settings.settings import Settings, SettingsError, check_known, known_settings
from tutti_vllm.settings.shared import SharedSettings
from tutti_vllm.worker_side import ranges

__all__ = ["CONFIG_VARIABLE", "EXTRA", "PREFIX", "Effective", "Value", "effective", "read_file"]

PREFIX = "TUTTI_"

CONFIG_VARIABLE = "TUTTI_CONFIG"
"""Names the file of settings."""

EXTRA = "kv_connector_extra_config"

DEFAULT = "default"

FILE_LIMIT = 1 << 20

NEAR = 0.8
"""How alike a variable's name and a setting's must be to be taken for a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value, and who set it: ``EXTRA``, ``environment NAME``, ``file PATH`` or ``default``."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings that count, and for each key where its value is from."""

    settings: Settings
    values: dict[str, Value]


def effective(extra: Mapping[str, Any], environment: Mapping[str, str]) -> Effective:
    """Return the settings that count.

    Raises SettingsError that names key, rule and, where it is not ``kv_connector_extra_config``, the source.
    """
    given: dict[str, Value] = {}
    path = environment.get(CONFIG_VARIABLE)
    if path:
        found = read_file(Path(path))
        check_known(found, str(path))
        given |= {key: Value(value, f"file {path}") for key, value in found.items()}
    given |= from_environment(environment)
    check_known(extra, EXTRA)
    given |= {key: Value(value, EXTRA) for key, value in extra.items()}
    try:
        settings = Settings.parse({key: each.value for key, each in given.items()})
    except SettingsError as error:
        # Messages begin with the key.
        culprit = given.get(str(error).split(maxsplit=1)[0].rstrip(":"))
        if culprit is None or culprit.source == EXTRA:
            raise
        raise SettingsError(f"{error} ({culprit.source})") from None
    return Effective(settings, values_of(settings, given, environment))


def from_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings of variables ``TUTTI_<SETTING>``: JSON, or the text as it is where it is none.

    Raises SettingsError for a variable that nearly is one; others are not ours. ``TUTTI_NVTX`` has a rule of
    its own, see ``ranges``.
    """
    names = {PREFIX + key.upper(): key for key in known_settings() if PREFIX + key.upper() != ranges.VARIABLE}
    others = (ranges.VARIABLE, CONFIG_VARIABLE)
    found = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in others:
            continue
        if name not in names:
            near = difflib.get_close_matches(
                name[len(PREFIX) :], [each[len(PREFIX) :] for each in names], 1, NEAR
            )
            if near:
                raise SettingsError(f"{name} is set in the environment: did you mean {PREFIX}{near[0]}?")
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found[names[name]] = Value(value, f"environment {name}")
    return found


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML or JSON file. Raises SettingsError that names the file."""
    if not path.is_absolute():
        raise SettingsError(f"{CONFIG_VARIABLE} must be an absolute path, not {str(path)!r}")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings in {path} cannot be read: {error}") from None
    if len(text) > FILE_LIMIT:
        raise SettingsError(
            f"the settings in {path} take more than {FILE_LIMIT} characters; is it the right file?"
        )
    found = parse_text(text, path)
    if not isinstance(found, dict):
        raise SettingsError(f"the settings in {path} must be keys with values, not {type(found).__name__}")
    return found


def parse_text(text: str, path: Path) -> Any:
    """Return what a file says; JSON is tried first, as it needs no library. Raises SettingsError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise SettingsError(
            f"the settings in {path} are no JSON, and PyYAML is not installed: pip install pyyaml"
        ) from None
    try:
        return {} if not text.strip() else yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"the settings in {path} are no YAML: {' '.join(str(error).split())}") from None


def values_of(
    settings: Settings, given: Mapping[str, Value], environment: Mapping[str, str]
) -> dict[str, Value]:
    """Return each setting's value as it counts, as JSON, in the order of their table."""
    found: dict[str, Value] = {}
    for each in fields(Settings):
        if each.name in ("policies", "shared"):
            continue
        value = getattr(settings, each.name)
        if each.name == "roots":
            value = [str(root) for root in value]
        key = "root" if each.name == "roots" else each.name
        found[key] = Value(value, given[key].source if key in given else DEFAULT)
    for name in PolicySettings.names():
        source = given[name].source if name in given else DEFAULT
        found[name] = Value(getattr(settings.policies, name), source)
    for name in SharedSettings.names():
        source = given[name].source if name in given else DEFAULT
        found[name] = Value(getattr(settings.shared, name), source)
    if environment.get(ranges.VARIABLE, "0") not in ("", "0"):
        found["nvtx"] = Value(True, f"environment {ranges.VARIABLE}")
    return found
