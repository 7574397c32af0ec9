# SPDX-License-Identifier: Apache-2.0
"""What ``tutti doctor`` shall say about a shared store that the environment or the file of settings names."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue

from tutti_vllm.settings.settings import SettingsError
from tutti_vllm.settings.sources import effective
from tutti_vllm.start.shared_opening import connect

__all__ = ["examine_shared"]

PATIENCE = 5.0


def examine_shared(
    environment: Mapping[str, str] = os.environ, patience: float = PATIENCE
) -> list[dict[str, str]]:
    """Return one finding, none where no shared store is named.

    What is in ``kv_connector_extra_config`` alone is not seen here.
    """
    try:
        # Nothing of a drive is looked at; the key that is required has to be there.
        shared = effective({"capacity_bytes": 1}, environment).settings.shared
    except SettingsError as error:
        return [finding("fail", str(error), "set it right; `tutti config` shows what counts")]
    if shared.shared_store is None:
        return []
    store = connect(shared)
    answers: SimpleQueue[object] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(store.exists(["tutti-doctor"]))
        except Exception as error:
            answers.put(error)

    try:
        store.wait_settled(patience)
        if store.why_not is not None:
            return [
                finding("fail", f"{shared.kind}: {store.why_not}", "start the store, or name another one")
            ]
        threading.Thread(target=ask, name="tutti-doctor", daemon=True).start()
        try:
            answer = answers.get(timeout=patience)
        except Empty:
            answer = TimeoutError(f"no answer within {patience:.0f} s")
        if isinstance(answer, Exception):
            return [
                finding("fail", f"{shared.kind} does not say what it holds: {answer}", "look at the store")
            ]
        return [finding("ok", f"{shared.kind} answers", "")]
    finally:
        store.shutdown()


def finding(verdict: str, found: str, fix: str) -> dict[str, str]:
    """Return a finding about the shared store."""
    return {"verdict": verdict, "name": "shared store", "found": found, "fix": fix}
