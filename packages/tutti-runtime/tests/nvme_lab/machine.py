# SPDX-License-Identifier: Apache-2.0
"""A machine without a guest: its processor stands still, its devices are driven through QEMU's test socket.

Memory is a file that both QEMU and the test map: a bus address is an offset into it.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest

from nvme_lab.drives import Drive, Peer
from nvme_lab.trace import TRACE_ARGUMENTS, events, queues_used, unprovoked

__all__ = ["FIRST_SLOT", "PEER_SLOT", "QEMU", "Machine", "QtestSocket", "machine_of", "need_qemu"]

QEMU = "qemu-system-x86_64"
FIRST_SLOT = 4
PEER_SLOT = 3
MIB = 1 << 20
START_SECONDS = 20.0
# 64 KiB of `hlt`; the reset vector at the end stops interrupts and halts for ever: no firmware touches PCI.
FIRMWARE = b"\xf4" * 0xFFF0 + b"\xfa\xf4\xeb\xfd" + b"\xf4" * 12


def need_qemu() -> None:
    """Skip where QEMU is not installed."""
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not installed (Debian: qemu-system-x86)")


class QtestSocket:
    """The few commands of QEMU's qtest protocol that a test itself needs: one line each, one line back."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(START_SECONDS)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rw")

    def __enter__(self) -> QtestSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, command: str) -> int:
        """Send a command, give the number that comes back (0 where none does)."""
        self._file.write(command + "\n")
        self._file.flush()
        words = self._file.readline().split()
        assert words[:1] == ["OK"], f"{command}: {words}"
        return int(words[1], 0) if len(words) > 1 else 0

    def config(self, slot: int, register: int) -> int:
        """A 32-bit word of a device's PCI configuration space."""
        self.ask(f"outl 0xcf8 {0x80000000 | slot << 11 | register:#x}")
        return self.ask("inl 0xcfc")


@dataclass
class Machine:
    """A running QEMU; ``slots`` of its drives in their order."""

    process: subprocess.Popen[bytes]
    folder: Path
    ram: Path
    ram_bytes: int
    drives: Sequence[Drive]
    peer: Peer | None
    provoked: set[str] = field(default_factory=set)

    @property
    def socket(self) -> Path:
        """The qtest socket: it serves one connection at a time."""
        return self.folder / "qtest"

    @property
    def log(self) -> Path:
        return self.folder / "trace"

    def spec(self, number: int = 0, **more: object) -> dict[str, object]:
        """The controller's entry for ``make_nvme_runtime``."""
        keys: dict[str, object] = {
            "transport": "qtest",
            "socket": str(self.socket),
            "ram": str(self.ram),
            "slot": FIRST_SLOT + number,
        }
        if self.peer is not None:
            keys |= {"peer": str(self.peer.file), "peer_slot": PEER_SLOT}
        return keys | more

    def specs(self, **more: object) -> list[dict[str, object]]:
        """Of all controllers."""
        return [self.spec(number, **more) for number in range(len(self.drives))]

    @contextmanager
    def window(self, offset: int, size: int) -> Iterator[mmap.mmap]:
        """The machine's memory from ``offset`` on, mapped by the test."""
        with self.ram.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), size, offset=offset)
        try:
            yield mapped
        finally:
            mapped.close()

    def provokes(self, *names: str) -> None:
        """The test is going to break a rule: these events are expected, and no others."""
        self.provoked |= set(names)

    def count(self, event: str) -> int:
        """How often a traced event came so far."""
        return events(self.log)[event]

    def queues_used(self) -> set[int]:
        """Submission queues that brought I/O commands; for a machine with ``traced=IO_COMMAND``."""
        return queues_used(self.log)

    def check(self) -> None:
        """The machine is alive; every event of its trace was provoked, and every provoked one came."""
        assert self.process.poll() is None, f"QEMU ended: {self.log.read_text()}"
        lines = unprovoked(self.log, frozenset(self.provoked))
        assert not lines, f"the driver broke a rule: {lines}"
        missing = self.provoked - set(events(self.log))
        assert not missing, f"expected and did not come: {sorted(missing)}"


def _arguments(folder: Path, ram: Path, size: int, drives: Sequence[Drive], peer: Peer | None) -> list[str]:
    (folder / "firmware").write_bytes(FIRMWARE)
    made = [QEMU, "-machine", "q35,memory-backend=ram", "-accel", "tcg", "-bios", str(folder / "firmware")]
    made += ["-m", str(size // MIB), "-display", "none", "-nodefaults", "-no-user-config"]
    made += ["-object", f"memory-backend-file,id=ram,mem-path={ram},share=on,size={size}"]
    made += ["-qtest", f"unix:{folder / 'qtest'},server=on,wait=off", "-qtest-log", "/dev/null"]
    made += ["-D", str(folder / "trace"), *TRACE_ARGUMENTS]
    for number, drive in enumerate(drives):
        made += drive.arguments(number, FIRST_SLOT + number)
    return made + (peer.arguments(PEER_SLOT) if peer is not None else [])


def _wait_for(process: subprocess.Popen[bytes], path: Path, errors: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with QtestSocket(path) as qtest:
                qtest.config(0, 0)
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"QEMU did not start: {errors.read_text()}") from None
            time.sleep(0.005)


@contextmanager
def machine_of(
    drives: Sequence[Drive],
    *,
    ram_bytes: int = 128 * MIB,
    peer: Peer | None = None,
    check: bool = True,
    traced: str = "",
) -> Iterator[Machine]:
    """Start a machine, and at the end check its trace and remove it and its memory.

    ``traced``: an event to trace beside those that tell of errors.
    """
    need_qemu()
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    # A socket's path has at most 107 bytes, which a test's own folder may exceed.
    with tempfile.TemporaryDirectory(prefix="tutti-qemu-") as name:
        folder = Path(name)
        handle, ram_name = tempfile.mkstemp(prefix="tutti-qemu-ram-", dir=shared)
        os.ftruncate(handle, ram_bytes)
        os.close(handle)
        ram = Path(ram_name)
        with (folder / "errors").open("wb") as errors:
            process = subprocess.Popen(
                _arguments(folder, ram, ram_bytes, drives, peer) + (["-trace", traced] if traced else []),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        try:
            _wait_for(process, folder / "qtest", folder / "errors")
            machine = Machine(process, folder, ram, ram_bytes, drives, peer)
            yield machine
            if check:
                machine.check()
        finally:
            process.kill()
            process.wait()
            ram.unlink()
