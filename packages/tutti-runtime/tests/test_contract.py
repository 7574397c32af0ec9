# SPDX-License-Identifier: Apache-2.0
"""The contract of tutti_runtime.testing.contract, over every data path with doubles that lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from cuda_kit import FakeCuda, FakeCufile
from loop_kit import Loops

import tutti_runtime as tr
from tutti_runtime import testing
from tutti_runtime.testing import contract
from tutti_runtime.testing.subjects import KINDS, MadeTarget, Subject, make_subject

PLANS = {
    "plain": testing.FaultPlan(),
    "unordered": testing.delayed((0.0, 0.002), every=3) + testing.reordering(8, seed=3),
    "accepting": testing.accepting(5),
}


@pytest.fixture(params=[f"{kind}-{plan}" for kind in KINDS for plan in PLANS])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    kind, _, plan = request.param.rpartition("-")
    try:
        made = make_subject(kind, tmp_path, PLANS[plan])
        made.open(4096)
    except OSError as error:
        pytest.skip(f"{kind}: {error}")
    yield made
    made.runtime.shutdown(30)


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract(check: str, subject: Subject) -> None:
    contract.CHECKS[check](subject)


@pytest.fixture(params=PLANS)
def cufile_subject(
    request: pytest.FixtureRequest, fake_cuda: FakeCuda, fake_cufile: FakeCufile, tmp_path: Path
) -> Iterator[Subject]:
    assert fake_cufile.handles == 0
    runtime = testing.make_fault_runtime(
        "cufile", PLANS[request.param], direct="off", cufile_library=fake_cuda.cufile_path
    )
    yield Subject("cufile", runtime, tmp_path, KINDS["posix"][2])
    runtime.shutdown(30)
    assert fake_cufile.handles == 0


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract_on_cufile(check: str, cufile_subject: Subject) -> None:
    """Against a cuFile of our own; what the real one does is for the gpu tests."""
    contract.CHECKS[check](cufile_subject)


@pytest.fixture(params=["posix", "uring"])
def device_subject(
    request: pytest.FixtureRequest, loops: Loops, tmp_path: Path
) -> Iterator[Callable[[], Subject]]:
    """Slices of a loop device, opened as a block device."""
    device = loops.device(64 << 20)
    made: list[tr.Runtime] = []

    def slice_of(_: Path, number: int, size: int) -> MadeTarget:
        uri = f"raw://{quote(str(device.path))}?offset={number << 20}&size={size}"
        return MadeTarget(uri, size)

    def build() -> Subject:
        made.append(tr.make_file_runtime(data_path=request.param))
        return Subject("raw device", made[-1], tmp_path, slice_of)

    yield build
    for runtime in made:
        runtime.shutdown(30)


@pytest.mark.root
def test_contract_on_a_block_device(device_subject: Callable[[], Subject]) -> None:
    """All checks one after the other: making a device for each would take longer than the checks."""
    for check in contract.CHECKS.values():
        subject = device_subject()
        check(subject)
        subject.runtime.shutdown(30)  # a writable device is one runtime's


def broken_submit(runtime: tr.Runtime, rows: object, **options: object) -> tr.SubmitResult:
    rows = rows.copy()  # type: ignore[attr-defined]
    rows["target_offset"][rows["target_offset"] == 4096] = 0
    return tr.Runtime.submit(runtime, rows, **options)  # type: ignore[arg-type]


def broken_close(runtime: tr.Runtime, target: int) -> None:
    del runtime, target


def broken_stats(runtime: tr.Runtime) -> dict[str, int]:
    return {**tr.Runtime.stats(runtime), "submitted": 3}


def broken_poll(runtime: tr.Runtime, handle: int) -> bool:
    try:
        return tr.Runtime.poll(runtime, handle)
    except tr.InvalidHandleError:
        return True


@pytest.mark.parametrize(
    ("method", "broken", "check"),
    [
        ("submit", broken_submit, "bytes_come_back"),
        ("submit", broken_submit, "bytes_are_where_they_belong"),
        ("submit", broken_submit, "untouched_bytes_stay"),
        ("close", broken_close, "stale_handles_are_never_somebody_elses"),
        ("stats", broken_stats, "counters_add_up"),
        ("poll", broken_poll, "a_handle_is_good_once"),
    ],
)
def test_a_broken_runtime_does_not_pass(
    method: str, broken: Callable[..., object], check: str, tmp_path: Path
) -> None:
    subject = make_subject("memory", tmp_path)
    with subject.runtime:
        setattr(subject.runtime, method, partial(broken, subject.runtime))
        with pytest.raises(contract.ContractError):
            contract.CHECKS[check](subject)
