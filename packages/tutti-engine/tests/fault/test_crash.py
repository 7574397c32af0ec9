# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, read_counters, resident_chunks
from tutti_engine.errors import StoreBusyError
from tutti_engine.testing.window import HostWindow

PROGRAM = Path(__file__).with_name("storing.py")
ROUNDS = 20


def load_program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutti_storing_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


storing = load_program()


def start(root: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(root)], stdout=subprocess.PIPE, text=True, env=environment
    )


def run_until_killed(root: Path, steps: int) -> None:
    """Let the program store until it has announced some steps, then kill it in the middle of one."""
    program = start(root)
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(steps)]
    program.kill()
    program.communicate()
    assert all(lines), "the program ended by itself"


def verify(root: Path) -> int:
    """Open the store and compare every record with its data; return the number of records."""
    with storing.open_store(root) as store:
        backend = LocalStoreBackend(store.layout, 0)
        window = HostWindow(storing.GEOMETRY.num_layers, storing.GEOMETRY.segment_bytes)
        backend.bind_staging(window)
        try:
            for record in store.records:
                assert storing.read_checksums(backend, window, record.slot) == record.checksums[0]
        finally:
            backend.shutdown()
        return len(store.records)


def test_every_record_matches_its_data_after_any_kill(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    found, counted = 0, 0
    for _ in range(ROUNDS):
        run_until_killed(tmp_path, moments.randint(1, 100))
        found = max(found, verify(tmp_path))
        counters = read_counters(tmp_path / storing.NAMESPACE.digest)
        assert counters.get("stored", 0) >= counted, "counters never go backwards"
        counted = counters.get("stored", 0)
    assert found > 0, "nothing was ever stored, so nothing was tested"


def test_owner_is_named_while_it_runs_and_replaced_after_its_death(tmp_path: Path) -> None:
    program = start(tmp_path)
    assert program.stdout is not None
    for _ in range(40):
        assert program.stdout.readline()
    try:
        with pytest.raises(StoreBusyError) as caught:
            storing.open_store(tmp_path)
        assert caught.value.pid == program.pid
    finally:
        program.kill()
        program.communicate()
    directory = tmp_path / storing.NAMESPACE.digest
    left = sorted(directory.iterdir())
    resident, stored = resident_chunks(directory), read_counters(directory)["stored"]
    assert sorted(directory.iterdir()) == left
    assert resident == verify(tmp_path) > 0, "what a crash left can be read before the next owner"
    assert stored > 0


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_lost_segment_data_reads_as_zeros_that_no_checksum_matches(tmp_path: Path, damage: str) -> None:
    run_until_killed(tmp_path, 60)
    assert verify(tmp_path) > 0
    for path in tmp_path.rglob("*.seg"):
        os.truncate(path, 4096) if damage == "truncate" else path.unlink()
    with storing.open_store(tmp_path) as store:
        backend = LocalStoreBackend(store.layout, 0)
        window = HostWindow(storing.GEOMETRY.num_layers, storing.GEOMETRY.segment_bytes)
        backend.bind_staging(window)
        for record in store.records:
            assert storing.read_checksums(backend, window, record.slot) != record.checksums[0]
        backend.shutdown()


def test_damaged_catalogue_costs_the_cache_not_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_until_killed(tmp_path, 30)
    for path in tmp_path.rglob(f"{CATALOGUE_NAME}*"):
        path.write_bytes(os.urandom(8192))
    assert verify(tmp_path) == 0
    assert len(caplog.records) == 1
    run_until_killed(tmp_path, 60)
    assert verify(tmp_path) > 0
