# SPDX-License-Identifier: Apache-2.0
"""Damage, a full disk and a killed server cost computations, never a token."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import CHUNK_BYTES, prompt

from tools.engine_process import store_directory


def segment_file(root: Path) -> Path:
    (path,) = store_directory(root).glob("rank-0/*.seg")
    return path


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2 * CHUNK_BYTES + CHUNK_BYTES // 2 + 12345)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))


def swap_two_chunks(path: Path) -> None:
    with path.open("r+b") as file:
        first, second = file.read(CHUNK_BYTES), file.read(CHUNK_BYTES)
        file.seek(0)
        file.write(second + first)


def cut_short(path: Path) -> None:
    os.truncate(path, CHUNK_BYTES + 4096)


@pytest.mark.parametrize(
    ("damage", "failed", "stored"),
    # What goes on from a damaged chunk leaves with it, and is stored anew.
    [(flip_a_bit, 1, 4), (swap_two_chunks, 2, 6), (cut_short, 5, 5)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_damaged_file_is_computed_again_and_mended(start, reference, tmp_path, damage, failed, stored):
    one = prompt(50, 400)
    expected = reference(one)
    start().answer(one)
    engine = start()
    damage(segment_file(tmp_path / "cache"))
    assert engine.answer(one) == expected
    assert engine.counters()["load_failed_chunks"] == failed
    assert engine.counters()["load_chunks"] == 6 - failed
    assert engine.counters()["store_chunks"] == stored

    engine.forget_memory()
    before = engine.counters()
    assert engine.answer(one) == expected
    assert engine.transferred(before) == (6, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    made = subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop mounts here: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_full_disk_costs_hits_only_and_heals(start, reference, small_disk):
    prompts = [prompt(60 + n, 500) for n in range(6)]
    expected = reference(*prompts)
    filler = small_disk / "filler"
    engine = start(root=small_disk / "cache", capacity_bytes=1 << 30)
    filler.write_bytes(bytes(10 << 20))
    for one, tokens in zip(prompts, expected, strict=True):
        assert engine.answer(one) == [tokens]
    assert engine.counters()["store_failed_chunks"] > 0
    _, stored = engine.transferred()

    engine.forget_memory()
    for one, tokens in zip(prompts, expected, strict=True):
        assert engine.answer(one) == [tokens]
    assert engine.transferred()[0] > 0, "what was stored before is still served"

    filler.unlink()
    fresh = [prompt(70 + n, 100) for n in range(40)]
    deadline = time.monotonic() + 60
    while engine.counters()["store_chunks"] == stored and time.monotonic() < deadline:
        engine.answer(fresh.pop())
        time.sleep(1)
    assert engine.counters()["store_chunks"] > stored, "storing goes on once there is room"
