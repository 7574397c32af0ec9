# SPDX-License-Identifier: Apache-2.0
"""Whole layers by teams of threads: the code that the kernel's warps run, and what the host sees of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda_kit import real_driver
from layer_kit import MIB, PAGE, LayerRig
from runtime_kit import Buffer

from tutti_runtime import nvme_layers

Rigs = Callable[..., LayerRig]


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    made: list[LayerRig] = []

    def build(count: int = 1, drive: dict[str, Any] | None = None, **settings: Any) -> LayerRig:
        made.append(LayerRig(settings, drive or {}, count))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.mark.parametrize("linger", [0.002, 0.0])
@pytest.mark.parametrize(
    "drive", [{}, {"mdts_bytes": 8192, "lba_bytes": 4096}, {"dma_granule": 65536, "sgl": True}]
)
def test_a_layer_that_was_written_is_read_back(drive: dict[str, Any], linger: float, rigs: Rigs) -> None:
    rig = rigs(2, drive, linger=linger, queue_entries=16)
    buffer = Buffer(4 * MIB)
    buffer.fill_random(3)
    wanted = buffer.bytes.copy()
    window = rig.layers.add_window(buffer.address, 4 * MIB)
    count, length = 63, 64 * 1024
    slices = rig.slices(window, count, length, lambda i: 31 - i)
    assert (rig.run(rig.layers.add_layer("write", slices)) == 0).all()
    read = rig.layers.add_layer("read", slices)
    for _ in range(3):
        buffer.bytes[: count * length] = 0
        assert (rig.run(read) == 0).all()
        assert np.array_equal(buffer.bytes, wanted)
    counters = rig.layers.counters()
    assert counters["strays"] == counters["remade"] == counters["resets"] == 0
    assert counters["doorbells"] < counters["commands"]


def test_an_error_is_told_of_its_slice_alone(rigs: Rigs) -> None:
    rig = rigs()
    buffer = Buffer(MIB)
    layer = rig.layers.add_layer("read", rig.slices(rig.layers.add_window(buffer.address, MIB), 100, PAGE))
    rig.controls[0].fail("status", first_lba=8 * 17, last_lba=8 * 17, status=0x281)
    statuses = rig.run(layer)
    assert statuses[17] == errno.ENODATA
    assert np.count_nonzero(statuses) == 1
    assert (rig.run(layer) == 0).all()


def test_a_lost_completion_ends_in_time_and_the_next_layer_works(rigs: Rigs) -> None:
    rig = rigs(command_timeout=0.5)
    buffer = Buffer(MIB)
    layer = rig.layers.add_layer("read", rig.slices(rig.layers.add_window(buffer.address, MIB), 100, PAGE))
    rig.controls[0].fail("drop_completion", skip=50)
    assert errno.ETIMEDOUT in rig.run(layer)
    assert rig.layers.counters()["remade"] == 1
    assert (rig.run(layer) == 0).all()


def test_teams_that_play_the_drives_answer_every_command(rigs: Rigs) -> None:
    rig = rigs(2, queue_entries=32)
    buffer = Buffer(MIB)
    layer = rig.layers.add_layer("read", rig.slices(rig.layers.add_window(buffer.address, MIB), 256, PAGE))
    rig.layers.play_drives()
    for _ in range(20):
        assert (rig.run(layer) == 0).all()
    assert rig.layers.counters()["commands"] == 20 * 256
    assert sum(control.counters()["commands"] for control in rig.controls) == 0


def test_refusals_say_what_is_wrong(rigs: Rigs) -> None:
    rig = rigs()
    with pytest.raises(ValueError, match="blocks=9"):
        rigs(blocks=9)
    with pytest.raises(ValueError, match="execution='tpu'"):
        rigs(execution="tpu")
    with pytest.raises(ValueError, match="6 columns"):
        rig.layers.add_layer("read", np.zeros((3, 5)))
    with pytest.raises(ValueError, match="which one is not there"):
        rig.layers.add_layer("read", [(0, 0, 0, 0, 0, PAGE)])
    with pytest.raises(ValueError, match="kind"):
        rig.layers.add_window(0, PAGE, kind="device")


def test_without_a_gpu_cuda_is_refused(rigs: Rigs) -> None:
    if real_driver():
        pytest.skip("a CUDA driver is here")
    with pytest.raises(OSError, match=r"libcuda|without a CUDA compiler"):
        rigs(execution="cuda")
    with pytest.raises(OSError, match="libcuda"):
        rigs(drive={"device": 0})
    assert isinstance(nvme_layers.missing_kernel(), str)
