# SPDX-License-Identifier: Apache-2.0
"""Ways to the device that are refused or fail: the runtime goes a simpler way, and says so once."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import PAGE, Setup, batch, child, faulty, make, pages, request, run

import tutti_runtime as tr
from tutti_runtime import _core


@pytest.fixture
def control() -> _core.FaultControl:
    return _core.FaultControl({})


@pytest.fixture
def auto(control: _core.FaultControl, tmp_path: Path) -> Iterator[Setup]:
    """A runtime that may choose, whose io_uring fails as `control` says."""
    make("uring", "off", tmp_path).shutdown()  # skips where there is none
    setup = Setup("posix", "off", tmp_path, faulty("auto", control))
    yield setup
    control.set_plan({})
    control.release()
    assert setup.runtime.shutdown(30)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tutti_runtime"]


def test_three_errors_in_a_row_of_the_ring_step_down(
    auto: Setup, control: _core.FaultControl, caplog: pytest.LogCaptureFixture
) -> None:
    rows, data = pages(auto, tr.WRITE, 1)
    data[:PAGE] = 9
    control.set_plan({"rules": [{"error": errno.EOPNOTSUPP}]})
    for done_before in range(3):
        assert auto.runtime.caps()["stepped_down"] is None, done_before
        assert run(auto.runtime, rows).status.tolist() == [0]
    caps = auto.runtime.caps()
    assert caps["data_path"] == "posix"
    assert "uring failed 3 times in a row" in caps["stepped_down"]
    assert caps["chosen_because"] == caps["stepped_down"]
    assert auto.runtime.stats()["step_downs"] == 1
    assert auto.runtime.stats()["failed"] == 0
    rows["direction"] = tr.READ
    data[:PAGE] = 0
    for _ in range(3):
        run(auto.runtime, rows)
    assert (data[:PAGE] == 9).all()
    assert [text for text in warnings_of(caplog) if "uring failed" in text] == warnings_of(caplog)
    assert len(warnings_of(caplog)) == 1


def test_a_success_between_errors_keeps_the_ring(auto: Setup, control: _core.FaultControl) -> None:
    rows, _ = pages(auto, tr.WRITE, 1)
    control.set_plan({"rules": [{"error": errno.EIO, "every": 2}]})
    for _ in range(10):
        assert run(auto.runtime, rows).status.tolist() == [0]
    assert auto.runtime.caps()["data_path"] == "uring"


def test_what_is_canceled_below_the_ring_has_moved_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    """The ring moves half of each item and fails; many are canceled while they wait for a thread."""
    make("uring", "off", tmp_path).shutdown()  # skips where there is none
    length, count = 4 * PAGE, 500
    control = _core.FaultControl({"rules": [{"short": 2 * PAGE}]})
    for _ in range(10):  # each time anew: after three of them the ring is not asked any more
        auto = Setup("posix", "off", tmp_path, faulty("auto", control))
        buffer, memory = auto.memory(count * length)
        target = auto.target(count * length)
        rows = batch(
            *[request(tr.READ, memory, i * length, target, i * length, length) for i in range(count)]
        )
        buffer.bytes[:] = 9  # the file holds zeros
        handle = auto.runtime.submit(rows).handle
        assert handle is not None
        while buffer.bytes.all() and not auto.runtime.poll(handle):
            pass
        auto.runtime.cancel(handle)
        done = auto.runtime.wait(handle, 30)
        items = buffer.bytes.reshape(count, length)
        for item in np.flatnonzero(done.status):
            assert done.status[item] == errno.ECANCELED
            assert (items[item, int(done.bytes[item]) :] == 9).all(), done.bytes[item]
        assert auto.runtime.shutdown(30)


def test_an_error_of_the_file_is_told_and_no_strike(auto: Setup, control: _core.FaultControl) -> None:
    rows, _ = pages(auto, tr.READ, 1)
    (path,) = auto.folder.glob("target-*")
    with path.open("r+b") as file:
        file.truncate(0)  # io_uring and the threads both find that the file ends early
    for _ in range(5):
        assert run(auto.runtime, rows).status.tolist() == [errno.EIO]
    assert auto.runtime.caps()["data_path"] == "uring"
    control.set_plan({"rules": [{"error": errno.ENOSPC}]})
    assert run(auto.runtime, rows).status.tolist() == [errno.ENOSPC]


def test_a_flush_that_told_of_lost_writes_is_not_asked_again(
    auto: Setup, control: _core.FaultControl
) -> None:
    rows, _ = pages(auto, tr.FLUSH, 1)
    rows["memory"] = rows["length"] = 0
    control.set_plan({"rules": [{"error": errno.EIO}]})
    assert run(auto.runtime, rows).status.tolist() == [errno.EIO]
    control.set_plan({"rules": [{"error": errno.EOPNOTSUPP}]})
    assert run(auto.runtime, rows).status.tolist() == [0]


@pytest.mark.parametrize("name", ["uring", "posix"])
def test_a_path_that_was_asked_for_keeps_its_errors(
    name: str, control: _core.FaultControl, tmp_path: Path
) -> None:
    control.set_plan({"rules": [{"error": errno.EOPNOTSUPP}]})
    setup = Setup("posix", "off", tmp_path, faulty(name, control))
    rows, _ = pages(setup, tr.WRITE, 1)
    for _ in range(4):
        assert run(setup.runtime, rows).status.tolist() == [errno.EOPNOTSUPP]
    assert setup.runtime.caps()["data_path"] == name
    assert setup.runtime.shutdown(30)


SECCOMP = """
import ctypes, errno, logging, struct, tempfile
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
# Load the number of the system call; io_uring_setup (425) gives EPERM, all others go on.
program = b"".join(
    struct.pack("HBBI", *line)
    for line in [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, 425),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),
    ]
)
code = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, filter, 0, 0) != 0:
    print("no seccomp")
    raise SystemExit
import tutti_runtime as tr
from runtime_kit import Setup, pages, run
class Count(logging.Handler):
    texts = []
    def emit(self, record): self.texts.append(record.getMessage())
logging.getLogger("tutti_runtime").addHandler(Count())
with tempfile.TemporaryDirectory() as folder:
    setup = Setup("posix", "auto", Path(folder), tr.make_file_runtime())
    rows, _ = pages(setup, tr.WRITE, 4)
    status = run(setup.runtime, rows).status.tolist()
    caps = setup.runtime.caps()
    print(status, caps["data_path"], "Operation not permitted" in caps["chosen_because"], len(Count.texts))
    setup.runtime.shutdown()
try:
    tr.make_file_runtime(data_path="uring")
except OSError as error:
    print(error.errno == errno.EPERM)
"""


def test_io_uring_refused_by_seccomp_falls_back_with_one_warning(tmp_path: Path) -> None:
    make("uring", "off", tmp_path).shutdown()  # else nothing is shown
    printed = child(SECCOMP)
    if printed == "no seccomp":
        pytest.skip("this process may install no seccomp filter")
    assert printed.splitlines() == ["[0, 0, 0, 0] posix True 1", "True"]


def test_io_uring_disabled_falls_back(tmp_path: Path) -> None:
    switch = Path("/proc/sys/kernel/io_uring_disabled")
    make("uring", "off", tmp_path).shutdown()
    try:
        before = switch.read_text()
        switch.write_text("2")
    except OSError as error:
        pytest.skip(f"io_uring cannot be switched off here: {error}")
    try:
        with tr.make_file_runtime() as runtime:
            caps = runtime.caps()
    finally:
        switch.write_text(before)
    assert caps["data_path"] == "posix"
    assert "io_uring" in caps["chosen_because"]


def test_refused_registration_warns_once(tmp_path: Path) -> None:
    make("uring", "off", tmp_path).shutdown()
    code = """
    import os, resource, logging
    import tutti_runtime as tr
    from runtime_kit import Buffer
    class Count(logging.Handler):
        texts = []
        def emit(self, record): self.texts.append(record.getMessage())
    logging.getLogger("tutti_runtime").addHandler(Count())
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)  # the limit does not bind root
    runtime = tr.make_file_runtime(data_path="uring")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    buffers = [Buffer(65536) for _ in range(3)]
    for buffer in buffers:
        runtime.register_memory(buffer.address, 65536)
    runtime.shutdown()
    print(len(Count.texts), "RLIMIT_MEMLOCK" in Count.texts[0])
    """
    assert child(code) == "1 True"


def test_the_logger_is_the_packages(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tutti_runtime"), tr.make_memory_runtime():
        pass
    assert warnings_of(caplog) == []
