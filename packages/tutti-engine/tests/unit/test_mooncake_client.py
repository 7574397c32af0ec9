# SPDX-License-Identifier: Apache-2.0
"""What is refused before Mooncake is asked, and what its codes become; needs no Mooncake."""

import errno
import os
import socket
import sys
import threading
import time

import pytest

from tutti_engine.backends import mooncake_client
from tutti_engine.backends.mooncake import Turns
from tutti_engine.backends.mooncake_client import Attempt, MooncakeOptions, connect, errno_of
from tutti_engine.errors import BackendError
from tutti_engine.shared.kinds import check_shared_options, make_shared_store


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Nothing that a test sets stays."""
    for name in ("MC_RPC_TIMEOUT_MS", "MC_TCP_STATUS_TIMEOUT_SEC", "MC_TCP_PROGRESS_TIMEOUT_SEC",
                 "MC_STORE_CLIENT_SETUP_RETRIES", "MC_LOG_LEVEL"):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"master": "nowhere"}, "master must be host:port"),
        ({"master": "host:0"}, "master must be host:port"),
        ({"master": ":1"}, "master must be host:port"),
        ({"master": "h:1", "segment_bytes": -1}, "segment_bytes must be a number of bytes"),
        ({"master": "h:1", "buffer_bytes": "16MB"}, "buffer_bytes must be a number of bytes"),
        ({"master": "h:1", "timeout": 0}, "timeout must be above 0"),
        ({"master": "h:1", "timeout": "5"}, "timeout must be a number of seconds"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MooncakeOptions(**options)


def test_without_mooncake_one_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(BackendError, match="pip install mooncake-transfer-engine-non-cuda"):
        make_shared_store("mooncake", master="127.0.0.1:1")


def test_options_are_known_without_mooncake():
    check_shared_options("mooncake", {"master": "127.0.0.1:1", "replicas": 2})
    with pytest.raises(TypeError, match="segment_bytes"):
        check_shared_options("mooncake", {"master": "127.0.0.1:1", "segments": 2})


class FakeModule:
    """In the place of ``mooncake.store``."""

    def __init__(self, code=0, wait=None):
        self.code, self.wait, self.clients = code, wait, []

    def MooncakeDistributedStore(self):
        self.clients.append(self)
        return self

    def setup(self, *arguments):
        self.arguments = arguments
        if self.wait is not None:
            self.wait.wait()
        return self.code


@pytest.fixture
def master(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def use(monkeypatch, module):
    monkeypatch.setattr(mooncake_client, "load", lambda: module)


def test_a_master_that_is_not_there_is_an_error_at_once(monkeypatch):
    module = FakeModule()
    use(monkeypatch, module)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=f"master at 127.0.0.1:{port} does not answer") as caught:
        connect(MooncakeOptions(f"127.0.0.1:{port}"))
    assert caught.value.errno == errno.ECONNREFUSED
    assert not module.clients


def test_a_set_up_that_fails_or_hangs_is_an_error(monkeypatch, master):
    use(monkeypatch, FakeModule(code=-1))
    with pytest.raises(OSError, match="ended with code -1"):
        connect(MooncakeOptions(master))
    raising = FakeModule()
    raising.setup = None  # to call it raises TypeError
    use(monkeypatch, raising)
    with pytest.raises(OSError, match="not callable"):
        connect(MooncakeOptions(master))
    go, closed = threading.Event(), threading.Event()
    module = FakeModule(wait=go)
    module.close = closed.set
    use(monkeypatch, module)
    with pytest.raises(OSError, match="did not finish a set-up") as caught:
        connect(MooncakeOptions(master, timeout=0.01))
    assert caught.value.errno == errno.ETIMEDOUT
    # One that comes too late closes what it has opened.
    go.set()
    assert closed.wait(30)


def test_a_set_up_is_either_taken_or_closes_what_it_opened():
    late, early = Attempt(), Attempt()
    assert late.take() is None
    assert not late.end(0), "it has to close"
    assert early.end(0)
    assert early.take() == 0


def test_the_own_address_is_that_from_which_the_master_is_reached(monkeypatch, master):
    module = FakeModule()
    use(monkeypatch, module)
    assert connect(MooncakeOptions(master)) is module
    assert module.arguments[0] == "127.0.0.1"
    connect(MooncakeOptions(master, host="10.1.2.3"))
    assert module.arguments[0] == "10.1.2.3"


def test_its_deadlines_are_ours_unless_the_user_has_set_them(monkeypatch, master):
    use(monkeypatch, FakeModule())
    monkeypatch.setenv("MC_TCP_STATUS_TIMEOUT_SEC", "77")
    connect(MooncakeOptions(master, timeout=2.5))
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "2500"
    assert os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] == "3"
    assert os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] == "77"


def test_codes_become_what_callers_know():
    assert [errno_of(code) for code in (-200, -703, -704, -900, -901, -12345)] == [
        errno.ENOSPC, errno.ENOENT, errno.ENOENT, errno.ENOTCONN, errno.ETIMEDOUT, errno.EIO,
    ]  # fmt: skip


def test_one_at_a_time_and_who_stays_too_long_does_not_count():
    turns = Turns(1, 1e6)
    inside, go, order = threading.Event(), threading.Event(), []

    def stay():
        with turns.taken():
            order.append("first")
            inside.set()
            assert go.wait(30)
            order.append("first ends")

    def follow():
        with turns.taken():
            order.append("second")

    first, second = threading.Thread(target=stay), threading.Thread(target=follow)
    first.start()
    assert inside.wait(30)
    second.start()
    go.set()
    for each in (first, second):
        each.join(30)
    assert order == ["first", "first ends", "second"]
    impatient = Turns(1, 0.001)
    with impatient.taken(), impatient.taken(), impatient.taken():
        pass


def test_the_end_of_a_process_waits_for_calls_and_lets_no_more_begin():
    calls, inside, go = mooncake_client.Calls(), threading.Event(), threading.Event()

    def call():
        with calls.under_way():
            inside.set()
            assert go.wait(30)

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(30)
    assert not calls.end(0.0)
    with pytest.raises(OSError, match="closed or the process ends"), calls.under_way():
        pass
    go.set()
    assert calls.end(time.monotonic() + 30)
    thread.join(30)
