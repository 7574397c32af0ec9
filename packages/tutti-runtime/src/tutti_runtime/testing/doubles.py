# SPDX-License-Identifier: Apache-2.0
"""Runtimes with a device that misbehaves, and the switchboard of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutti_runtime import _core, config, nvme_settings
from tutti_runtime.requests import SubmitResult
from tutti_runtime.runtime import Runtime
from tutti_runtime.testing.plans import FaultPlan

__all__ = ["FaultRuntime", "Faults", "make_fault_runtime"]

_MEMORY = "memory"
_NVME = "nvme"


class Faults:
    """What the device of a :class:`FaultRuntime` does now. All methods may be called from any thread."""

    def __init__(self, control: _core.FaultControl, plan: FaultPlan) -> None:
        self._control = control
        self._plan = plan

    @property
    def plan(self) -> FaultPlan:
        """The plan in force."""
        return self._plan

    def set_plan(self, plan: FaultPlan | None = None) -> None:
        """Follow another plan from the next operation on (``None``: none); rules count anew.

        What is held back already stays so. Raises ``TypeError``, and ``ValueError`` for numbers that make no
        sense; the old plan then stays.
        """
        plan = _checked(plan)
        self._control.set_plan(plan.native())
        self._plan = plan

    def release(self) -> None:
        """Let everything that hangs at this moment go on to the device. What hangs later hangs again."""
        self._control.release()

    def heal(self) -> None:
        """No faults from now on, and nothing hangs any more."""
        self.set_plan()
        self.release()

    def held(self) -> int:
        """Operations that are held back at this moment, hanging, delayed or gathered."""
        return self._control.held()

    def wait_held(self, count: int, timeout: float = 30.0) -> None:
        """Wait until at least ``count`` operations are held back. Raises ``TimeoutError``."""
        if not self._control.wait_held(count, timeout):
            raise TimeoutError(f"{self.held()} operations are held back after {timeout} s, not {count}")


class FaultRuntime(Runtime):
    """A :class:`tutti_runtime.Runtime` with ``faults``.

    :meth:`shutdown` waits for what is held back as for any I/O, so release what hangs before it. Leaving a
    ``with`` block heals the device first.
    """

    def __init__(self, core: _core.StorageRuntime, faults: Faults, execution: str = "host") -> None:
        super().__init__(core)
        self.faults = faults
        self._execution = execution

    def submit(self, requests: NDArray[np.void], **options: Any) -> SubmitResult:
        """Start a batch; ``execution`` is that of the runtime where none is given."""
        return super().submit(requests, **{"execution": self._execution, **options})

    def __exit__(self, *error: Any) -> None:
        self.faults.heal()
        super().__exit__(*error)


def make_fault_runtime(
    base: str = _MEMORY, plan: FaultPlan | None = None, *, execution: str = "host", **settings: Any
) -> FaultRuntime:
    """Make a runtime of the data path ``base`` in front of which ``plan`` stands.

    ``base`` is ``"memory"``, ``"nvme"`` or a ``data_path`` of :func:`tutti_runtime.make_file_runtime`; with
    ``"auto"`` the better data path gets the plan and the one it steps down to does not. ``settings`` are
    those of the function that makes such a runtime without faults: ``make_memory_runtime``,
    ``make_nvme_runtime``, ``make_file_runtime``, or ``make_striped_runtime`` where ``roots`` are among them.
    ``execution``: of submits that name none.

    Raises what these functions raise, and ``ValueError`` for a plan with numbers that make no sense.
    """
    plan = _checked(plan)
    if base == _MEMORY:
        config.check_keys(settings, config.MEMORY_KEYS)
        room = config.check_int("max_in_flight", settings.get("max_in_flight", 4096))
        control = _core.FaultControl(plan.native())
        return FaultRuntime(_core.make_memory(room, control), Faults(control, plan), execution)
    if base == _NVME:
        config.check_keys(settings, nvme_settings.NVME_KEYS)
        checked = nvme_settings.check_nvme_settings(settings)
        control = _core.FaultControl(plan.native())
        return FaultRuntime(_core.make_nvme(**checked, fault=control), Faults(control, plan), execution)
    if base not in config.DATA_PATHS:
        config.check_choice("base", base, (_MEMORY, *config.DATA_PATHS, _NVME))
    native = _file_settings({"data_path": base, **settings})
    control = _core.FaultControl(plan.native())
    return FaultRuntime(_core.make_file(**native, fault=control), Faults(control, plan), execution)


def _file_settings(settings: dict[str, Any]) -> dict[str, Any]:
    config.check_keys(settings, config.STRIPED_KEYS)
    striped = {key: settings.pop(key) for key in ("roots", "unit") if key in settings}
    native = config.check_file_settings(settings)
    if "roots" in striped:
        native["roots"] = config.check_roots(striped["roots"])
    if "unit" in striped:
        native["unit"] = config.check_unit(striped["unit"])
    return native


def _checked(plan: FaultPlan | None) -> FaultPlan:
    if plan is None:
        return FaultPlan()
    if not isinstance(plan, FaultPlan):
        raise TypeError(f"plan={plan!r} must be a tutti_runtime.testing.FaultPlan or None")
    return plan
