# SPDX-License-Identifier: Apache-2.0
"""The module that users name in ``kv_connector_module_path``.

vLLM looks the class up here for the first time in the user's own process, before it starts any other and long
before the model is loaded; it makes connectors only minutes later, in child processes whose errors reach the
user as pages of tracebacks. So the look-up is where vLLM's version and the settings are checked.
"""

from __future__ import annotations

import importlib
import sys
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from tutti_vllm.compat import SUPPORTED, TESTED, check_vllm
from tutti_vllm.start.opening import StartupError, check_settings

if TYPE_CHECKING:
    from tutti_vllm.connector_v1 import TuttiConnectorV1

__all__ = ["TuttiConnectorV1"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _load()
    settings = _callers_settings(sys._getframe(1))
    if settings is not None:
        check_settings(settings)
    return getattr(module, name)


def _load() -> ModuleType:
    """Import the connector. Ends the process with one line where it cannot work with this vLLM."""
    try:
        found = check_vllm()
    except ImportError as error:
        raise StartupError(error) from None
    try:
        return importlib.import_module("tutti_vllm.connector_v1")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "vllm":
            raise
        raise StartupError(
            f"vLLM {found} lacks what tutti-vllm needs of it: {error}; use {','.join(SUPPORTED)}, best one of"
            f" {', '.join(TESTED)}"
        ) from None


def _callers_settings(frame: FrameType) -> dict[str, Any] | None:
    """Return the settings that vLLM's connector factory holds while it looks the class up.

    vLLM hands them to no callback at that time on every platform. If it ever holds them elsewhere, None comes
    back and they are checked when the connectors are made.
    """
    config = frame.f_locals.get("kv_transfer_config")
    settings = getattr(config, "kv_connector_extra_config", None)
    return settings if isinstance(settings, dict) else None
