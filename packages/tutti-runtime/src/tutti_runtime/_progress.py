# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: Rich's bar where it is installed and stderr is a terminal, else a line now and then."""

from __future__ import annotations

import importlib
import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_EVERY = 2.0


class Progress:
    """A context in which :meth:`advance` says how far the work is. Prints nothing when ``quiet``."""

    def __init__(self, total: float, what: str, *, quiet: bool = False) -> None:
        self._total = max(total, 1e-9)
        self._what = what
        self._quiet = quiet
        self._done = 0.0
        self._said = self._begun = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            try:
                rich = importlib.import_module("rich.progress")
                console = importlib.import_module("rich.console").Console(stderr=True)
            except ImportError:
                return self
            self._bar = rich.Progress(
                *rich.Progress.get_default_columns(), rich.TimeElapsedColumn(), console=console
            )
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def advance(self, amount: float, note: str = "") -> None:
        """``amount`` more of the total is done; ``note`` says what is being worked on."""
        self._done += amount
        text = f"{self._what} {note}".strip()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=text)
        elif not self._quiet and time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            part = min(1.0, self._done / self._total)
            print(f"{part:6.1%}  {self._said - self._begun:6.0f} s  {text}", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
