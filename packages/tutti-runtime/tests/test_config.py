# SPDX-License-Identifier: Apache-2.0
"""Settings are strict, and caps() tells the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runtime_kit import Setup, child

import tutti_runtime as tr

BAD_SETTINGS = [
    ("data_path", "URING"),
    ("data_path", None),
    ("data_path", 1),
    ("direct", "yes"),
    ("direct", True),
    ("queue_depth", 0),
    ("queue_depth", 4097),
    ("queue_depth", "64"),
    ("queue_depth", 1.0),
    ("queue_depth", True),
    ("max_in_flight", 0),
    ("max_in_flight", -1),
    ("max_in_flight", 2**20 + 1),
    ("max_in_flight", 2**40),
    ("threads", 0),
    ("threads", 257),
    ("threads", None),
]


@pytest.mark.parametrize(("key", "value"), BAD_SETTINGS)
def test_a_bad_value_names_key_value_and_rule(key: str, value: object) -> None:
    for make in (
        lambda: tr.make_file_runtime(**{key: value}),
        lambda: tr.make_runtime({"kind": "file", key: value}),
    ):
        with pytest.raises(ValueError, match="must be") as caught:
            make()
        assert f"{key}={value!r}" in str(caught.value)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'queue_dept'.*nearest known key is 'queue_depth'"):
        tr.make_runtime({"kind": "file", "queue_dept": 3})
    with pytest.raises(ValueError, match="nearest known key"):
        tr.make_runtime({"kind": "memory", "threads": 3})
    with pytest.raises(ValueError, match="unknown key 7"):
        tr.make_runtime({"kind": "memory", 7: 3})


def test_kind_is_required() -> None:
    with pytest.raises(ValueError, match="'kind' is missing"):
        tr.make_runtime({"queue_depth": 3})
    with pytest.raises(ValueError, match="kind='tape' must be one of"):
        tr.make_runtime({"kind": "tape"})
    with pytest.raises(ValueError, match="must be a mapping"):
        tr.make_runtime("file")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"kind": "memory", "max_in_flight": 3}, "memory"),
        ({"kind": "file", "data_path": "posix", "direct": "off", "threads": 1, "max_in_flight": 3}, "posix"),
    ],
)
def test_a_runtime_from_a_mapping(spec: dict[str, object], path: str) -> None:
    with tr.make_runtime(spec) as runtime:
        caps = runtime.caps()
    assert caps["data_path"] == path
    assert caps["max_in_flight"] == 3
    assert caps["max_batch_requests"] == 3


def test_caps(setup: Setup) -> None:
    caps = setup.runtime.caps()
    assert caps["data_path"] == setup.name
    assert caps["direct"] == setup.direct
    assert setup.name in caps["chosen_because"]
    assert caps["memory_alignment"] == 65536
    assert caps["offset_alignment"] == caps["length_alignment"] == 4096
    assert caps["max_single_io_bytes"] == 2**30
    assert caps["memory_kinds"] == ["host", "pinned_host"]
    assert caps["device_execution"] is False
    assert not set(caps["features_used"]) & set(caps["features_unused"])
    if setup.name == "uring":
        assert "registered_files" in caps["features_unused"]
        assert "registered_buffers" in caps["features_unused"]  # nothing is registered yet
        setup.memory(65536)
        caps = setup.runtime.caps()
        known = {**caps["features_used"], **caps["features_unused"]}
        assert "no memory" not in known["registered_buffers"]


def test_the_request_is_the_documented_one() -> None:
    assert tr.REQUEST_DTYPE.itemsize == 48
    assert tr.REQUEST_DTYPE.isalignedstruct
    offsets = {name: tr.REQUEST_DTYPE.fields[name][1] for name in tr.REQUEST_DTYPE.names}
    assert offsets == {
        "direction": 0,
        "reserved": 4,
        "memory": 8,
        "memory_offset": 16,
        "target": 24,
        "target_offset": 32,
        "length": 40,
    }
    assert (tr.READ, tr.WRITE, tr.FLUSH) == (0, 1, 2)
    assert np.zeros(1, dtype=tr.REQUEST_DTYPE)["memory"].dtype == np.uint64


def test_all_that_is_exported_exists() -> None:
    for name in tr.__all__:
        assert hasattr(tr, name)


# A seccomp filter, as many containers have one, that answers io_uring_setup with the given errno.
WITHOUT_URING = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def forbid(error):
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_without_io_uring_auto_takes_the_thread_pool(error: str) -> None:
    code = (
        WITHOUT_URING
        + f"""
import errno
import tutti_runtime as tr
forbid(errno.{error})
with tr.make_file_runtime() as runtime:
    caps = runtime.caps()
print(caps["data_path"], caps["chosen_because"])
try:
    tr.make_file_runtime(data_path="uring")
except OSError as refused:
    print(refused.errno == errno.{error}, type(refused).__name__)
"""
    )
    first, second = child(code).splitlines()
    assert first.startswith("posix no io_uring here: io_uring_setup: ")
    assert second == ("True PermissionError" if error == "EPERM" else "True OSError")


def test_with_io_uring_auto_takes_it(make_setup: Callable[..., Setup]) -> None:
    make_setup(("uring", "off"))  # skips without
    with tr.make_file_runtime() as runtime:
        caps = runtime.caps()
    assert caps["data_path"] == "uring"
    assert caps["direct"] == "auto"
    assert "io_uring works" in caps["chosen_because"]
