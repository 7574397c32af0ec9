# SPDX-License-Identifier: Apache-2.0
"""What the system refuses arrives per item, with its errno, and never as success."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from loop_kit import MIB, Loops
from runtime_kit import (
    ALIGN,
    KIB,
    PAGE,
    Buffer,
    LoopMount,
    Setup,
    batch,
    child,
    make,
    request,
    run,
)

import tutti_runtime as tr

SIZE = 64 * KIB


def test_a_file_that_became_shorter_is_an_io_error(file_setup: Setup) -> None:
    buffer, memory = file_setup.memory(SIZE)
    target = file_setup.target(SIZE)
    (path,) = file_setup.folder.glob("target-*")
    path.write_bytes(b"\x11" * SIZE)
    os.truncate(path, 2 * PAGE)
    buffer.bytes[:] = 0xA5
    rows = batch(
        request(tr.READ, memory, 0, target, 0, PAGE),
        request(tr.READ, memory, PAGE, target, PAGE, 2 * PAGE),
        request(tr.READ, memory, 4 * PAGE, target, 4 * PAGE, PAGE),
    )
    done = run(file_setup.runtime, rows)
    assert done.status.tolist() == [0, errno.EIO, errno.EIO]
    assert done.bytes.tolist() == [PAGE, PAGE, 0]
    stats = file_setup.runtime.stats()
    assert stats["failed"] == 2
    assert stats["completed"] == 3


def test_file_size_limit(file_pair: tuple[str, str], tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts one write short and refuses the next: both are failures, what is below is written."""
    make(*file_pair, tmp_path).shutdown()  # skips where this path cannot be had
    path = tmp_path / "limited"
    path.write_bytes(bytes(SIZE))
    code = """
    import resource
    from pathlib import Path
    import tutti_runtime as tr
    from runtime_kit import Buffer, PAGE, batch, request, run
    name, direct, path = sys.argv[1:]
    buffer = Buffer(65536)
    with tr.make_file_runtime(data_path=name, direct=direct) as runtime:
        memory = runtime.register_memory(buffer.address, 65536)
        target = runtime.open(Path(path).as_uri())
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PAGE, 2 * PAGE))
        rows = [(0, PAGE), (PAGE, 2 * PAGE), (4 * PAGE, PAGE)]
        done = run(runtime, batch(*[request(tr.WRITE, memory, o, target, o, n) for o, n in rows]))
    print(done.status.tolist(), done.bytes.tolist())
    """
    assert child(code, *file_pair, str(path)) == f"[0, {errno.EFBIG}, {errno.EFBIG}] [{PAGE}, {PAGE}, 0]"


@pytest.mark.root
def test_a_full_disk_fails_the_items_that_find_no_room(
    file_pair: tuple[str, str], loop_mount: LoopMount, make_setup: object
) -> None:
    setup: Setup = make_setup(file_pair, loop_mount.folder)  # type: ignore[operator]
    room = os.statvfs(loop_mount.folder)
    block = 256 * KIB
    count = room.f_bavail * room.f_frsize // block + 8  # more than there is room for
    buffer, memory = setup.memory(block)
    target = setup.target(count * block)  # sparse: takes no room yet
    expected = buffer.fill_random(31)
    flush = batch(request(tr.FLUSH, 0, 0, target, 0, 0))
    status = []
    for place in range(count):
        done = run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, place * block, block)))
        status.append(int(done.status[0]))
    assert set(status) == {0, errno.ENOSPC}, status
    assert status[0] == 0
    assert status[-1] == errno.ENOSPC
    assert run(setup.runtime, flush).status.tolist() == [0]

    buffer.bytes[:] = 0
    run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, block)))
    assert np.array_equal(buffer.bytes, expected)
    # Room that comes back is used: nothing has to be opened again.
    (path,) = loop_mount.folder.glob("target-*")
    fallocate_punch(path, 0, 2 * block)
    assert run(
        setup.runtime, batch(request(tr.WRITE, memory, 0, target, (count - 1) * block, block))
    ).status.tolist() == [0]


def fallocate_punch(path: Path, offset: int, length: int) -> None:
    subprocess.run(["fallocate", "-p", "-o", str(offset), "-l", str(length), str(path)], check=True)


def test_memory_that_is_not_mapped_is_refused(setup: Setup) -> None:
    hole = mmap.mmap(-1, 4 * ALIGN)
    address = int(np.frombuffer(hole, dtype=np.uint8).ctypes.data)
    first = -(-address // ALIGN) * ALIGN
    hole.close()
    with pytest.raises(ValueError, match="not mapped"):
        setup.runtime.register_memory(first, ALIGN)


@pytest.mark.parametrize(
    ("address", "size", "word"),
    [
        (0, PAGE, "address=0"),
        (ALIGN + PAGE, PAGE, "address="),
        (-ALIGN, PAGE, "address="),
        (ALIGN, 0, "size=0"),
        (ALIGN, PAGE + 1, "size="),
        (2**64 - ALIGN, 2 * ALIGN, "size="),
        (2**64, PAGE, "address="),
        ("x", PAGE, "address="),
        (ALIGN, 1.5, "size="),
        (ALIGN, True, "size="),
    ],
)
def test_a_bad_range_names_its_value(setup: Setup, address: object, size: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        setup.runtime.register_memory(address, size)  # type: ignore[arg-type]


def test_memory_kinds_of_other_data_paths_are_not_pretended(setup: Setup) -> None:
    buffer = Buffer(SIZE)
    with pytest.raises(ValueError, match="not supported by this data path"):
        setup.runtime.register_memory(buffer.address, SIZE, kind="device")
    with pytest.raises(ValueError, match="kind='gpu'"):
        setup.runtime.register_memory(buffer.address, SIZE, kind="gpu")
    for granularity in (1, 4097, 5 * PAGE, -PAGE):
        with pytest.raises(ValueError, match="io_granularity"):
            setup.runtime.register_memory(buffer.address, SIZE, io_granularity=granularity)
    setup.runtime.register_memory(buffer.address, SIZE, io_granularity=4 * PAGE)


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system without O_DIRECT."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "ramfs", "none", str(folder)], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a ramfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.root
@pytest.mark.parametrize("name", ["posix", "uring"])
def test_no_o_direct_at_open(ramfs: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    path = ramfs / "file"
    path.write_bytes(bytes(SIZE))
    with make(name, "auto", ramfs) as runtime, caplog.at_level(logging.WARNING, logger="tutti_runtime"):
        target = runtime.open(path.as_uri())
        runtime.open(path.as_uri())
        assert runtime.stats()["direct_fallbacks"] == 2
        assert len(caplog.records) == 1  # said once
        round_trip(runtime, target)
    with tr.make_file_runtime(data_path=name, direct="on") as runtime:
        with pytest.raises(OSError, match="refuses O_DIRECT") as caught:
            runtime.open(path.as_uri())
        assert caught.value.errno == errno.EINVAL
        assert caught.value.filename == str(path)


def round_trip(runtime: tr.Runtime, target: int) -> None:
    buffer = Buffer(SIZE)
    memory = runtime.register_memory(buffer.address, SIZE)
    expected = buffer.fill_random(17)
    run(runtime, batch(*[request(tr.WRITE, memory, o, target, o, PAGE) for o in range(0, SIZE, PAGE)]))
    buffer.bytes[:] = 0
    done = run(runtime, batch(*[request(tr.READ, memory, o, target, o, PAGE) for o in range(0, SIZE, PAGE)]))
    assert not done.status.any()
    assert np.array_equal(buffer.bytes, expected)
    runtime.unregister_memory(memory)


REFUSING_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#define REFUSE(fd) if (fcntl(fd, F_GETFL) & O_DIRECT) { errno = EINVAL; return -1; }
ssize_t pread(int fd, void *to, size_t size, off_t at) {
  REFUSE(fd)
  return ((ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, size, at);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
  REFUSE(fd)
  return ((ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, from, size, at);
}
ssize_t pread64(int fd, void *to, size_t size, off_t at) { return pread(fd, to, size, at); }
ssize_t pwrite64(int fd, const void *from, size_t size, off_t at) { return pwrite(fd, from, size, at); }
"""


@pytest.mark.parametrize("direct", ["auto", "on"])
def test_o_direct_refused_at_the_first_transfer(tmp_path: Path, direct: str) -> None:
    """A file system that takes the flag and refuses the transfer, played by a preloaded library."""
    make("posix", "on", tmp_path).shutdown()  # skips where the folder takes no O_DIRECT at all
    source, library, path = tmp_path / "refuse.c", tmp_path / "refuse.so", tmp_path / "file"
    source.write_text(REFUSING_LIBRARY)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler: {error}")
    path.write_bytes(bytes(SIZE))
    code = """
    from pathlib import Path
    import tutti_runtime as tr
    from runtime_kit import Buffer, PAGE, batch, request, run
    buffer = Buffer(65536)
    with tr.make_file_runtime(data_path="posix", direct=sys.argv[1]) as runtime:
        memory = runtime.register_memory(buffer.address, 65536)
        target = runtime.open(Path(sys.argv[2]).as_uri())
        expected = buffer.fill_random(1)
        rows = [request(tr.WRITE, memory, o, target, o, PAGE) for o in range(0, 65536, PAGE)]
        written = set(run(runtime, batch(*rows)).status.tolist())
        buffer.bytes[:] = 0
        rows = [request(tr.READ, memory, o, target, o, PAGE) for o in range(0, 65536, PAGE)]
        read = set(run(runtime, batch(*rows)).status.tolist())
        print(written, read, bool((buffer.bytes == expected).all()), runtime.stats()["direct_fallbacks"])
    """
    printed = child(code, direct, str(path), environment={"LD_PRELOAD": str(library)})
    refused = {errno.EINVAL}
    assert printed == ("{0} {0} True 1" if direct == "auto" else f"{refused} {refused} False 0")


@pytest.mark.parametrize("name", ["posix", "uring"])
def test_running_out_of_file_descriptors_heals(tmp_path: Path, name: str) -> None:
    make(name, "off", tmp_path).shutdown()
    for i in range(8):
        (tmp_path / f"f{i}").write_bytes(bytes(PAGE))
    code = """
    import errno, os, resource
    from pathlib import Path
    import tutti_runtime as tr
    from runtime_kit import Buffer, batch, request, run
    uris = [(Path(sys.argv[2]) / f"f{i}").as_uri() for i in range(8)]
    buffer = Buffer(65536)
    with tr.make_file_runtime(data_path=sys.argv[1]) as runtime:
        memory = runtime.register_memory(buffer.address, 65536)
        used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, used + 4))
        taken = []
        try:
            while True:
                taken.append(os.dup(1))
        except OSError:
            pass
        results = runtime.open_batch(uris)
        assert all(r.error.errno == errno.EMFILE for r in results), results
        for fd in taken[:4]:
            os.close(fd)
        # Targets that are not in use give their descriptor up for those that are.
        targets = [runtime.open(uri) for uri in uris]
        rows = batch(*[request(tr.READ, memory, 0, target, 0, 4096) for target in targets])
        assert run(runtime, rows).status.tolist() == [0] * 8
    print("healed")
    """
    assert child(code, name, str(tmp_path)) == "healed"


@pytest.mark.parametrize("name", ["posix", "uring"])
def test_a_refused_memlock_is_no_failure(name: str, tmp_path: Path) -> None:
    make(name, "off", tmp_path).shutdown()
    code = """
    import os, resource, tempfile
    from pathlib import Path
    import tutti_runtime as tr
    from runtime_kit import Buffer, batch, request, run
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)  # the limit does not bind root
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "file"
        path.write_bytes(bytes(65536))
        runtime = tr.make_file_runtime(data_path=sys.argv[1], direct="off")
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        target = runtime.open(f"file://{path}")  # as_uri() imports, which this user may not
        buffer = Buffer(65536)
        memory = runtime.register_memory(buffer.address, 65536)
        done = run(runtime, batch(request(tr.WRITE, memory, 0, target, 0, 65536)))
        print(done.status.tolist(), runtime.caps()["features_unused"].get("registered_buffers", ""))
        runtime.shutdown()
    """
    printed = child(code, name)
    assert printed.startswith("[0]")
    assert ("RLIMIT_MEMLOCK" in printed) == (name == "uring")


@pytest.mark.root
def test_a_used_up_quota_fails_the_items_that_exceed_it(
    file_pair: tuple[str, str], loops: Loops, make_setup: Callable[..., Setup]
) -> None:
    device = loops.mount("btrfs", 128 * MIB)
    assert device.folder is not None
    folder = device.folder / "limited"
    for command in (
        ["btrfs", "quota", "enable", str(device.folder)],
        ["btrfs", "subvolume", "create", str(folder)],
        ["btrfs", "qgroup", "limit", "2M", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no quota here: {done.stderr.strip()}")
    setup = make_setup(file_pair, folder)
    buffer, memory = setup.memory(256 * KIB)
    target = setup.target(8 * MIB)
    expected = buffer.fill_random(1)
    status = []
    for place in range(16):
        rows = batch(request(tr.WRITE, memory, 0, target, place * 256 * KIB, 256 * KIB))
        status.append(int(run(setup.runtime, rows).status[0]))
        run(setup.runtime, batch(request(tr.FLUSH, 0, 0, target, 0, 0)))
    assert set(status) == {0, errno.EDQUOT}, status
    assert status[0] == 0
    buffer.bytes[:] = 0
    run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, 256 * KIB)))
    assert np.array_equal(buffer.bytes, expected)


@pytest.mark.root
def test_a_drive_that_fails_below_a_file_system(
    file_pair: tuple[str, str], loops: Loops, make_setup: Callable[..., Setup]
) -> None:
    """Half of the drive goes away: its files fail, the others go on, and all is well when it is back."""
    device = loops.mount("ext4", 32 * MIB, mkfs=("-b", "4096", "-O", "^has_journal"))
    folder = device.folder
    assert folder is not None
    setup = make_setup(file_pair, folder)
    buffer, memory = setup.memory(MIB)
    expected = buffer.fill_random(2)
    targets = [setup.target(MIB) for _ in range(24)]
    for target in targets:
        run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, MIB)))
        run(setup.runtime, batch(request(tr.FLUSH, 0, 0, target, 0, 0)))
    Path("/proc/sys/vm/drop_caches").write_text("1\n")
    content = device.image.read_bytes()
    os.truncate(device.image, 16 * MIB)
    outcome = []
    for target in targets:
        done = run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, MIB)))
        outcome.append(int(done.status[0]))
        if outcome[-1] == 0:
            assert np.array_equal(buffer.bytes, expected)
    assert set(outcome) == {0, errno.EIO}
    device.image.write_bytes(content)
    assert run(setup.runtime, batch(request(tr.READ, memory, 0, targets[0], 0, MIB))).status.tolist() == [0]
