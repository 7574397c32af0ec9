# SPDX-License-Identifier: Apache-2.0
"""The NVMe data path on soft controllers: every byte arrives, whatever the drive is like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvme_kit import MIB, PAGE, SPACE, SoftRig, image_of
from runtime_kit import batch, request

import tutti_runtime as tr
from tutti_runtime.testing import contract
from tutti_runtime.testing.subjects import MadeTarget, Subject

DRIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "4k-blocks": {"lba_bytes": 4096},
    "small-mdts": {"mdts_bytes": 16384},
    "noiob": {"noiob": 24},
    "scattered-prp": {"dma_granule": 4096},
    "scattered-sgl": {"dma_granule": 65536, "sgl": True},
    "sgl": {"sgl": True, "lba_bytes": 4096},
    "slow": {"latency": 0.001, "max_entries": 8},
    "wide-doorbells": {"doorbell_stride": 64},
}

Rigs = Callable[..., SoftRig]


@pytest.fixture(params=["host", "device"])
def rigs(request: pytest.FixtureRequest) -> Iterator[Rigs]:
    made: list[SoftRig] = []

    def build(drive: dict[str, Any] | None = None, *, count: int = 1, **settings: Any) -> SoftRig:
        made.append(SoftRig(drive or {}, settings, count, request.param))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.mark.parametrize("drive", DRIVES)
def test_random_transfers_match_a_model(drive: str, rigs: Rigs) -> None:
    rig = rigs(DRIVES[drive], queues=2, queue_entries=16)
    buffer, memory = rig.memory(4 * MIB, seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    random = np.random.default_rng(2)
    disk = np.zeros(SPACE, dtype=np.uint8)
    for _ in range(12):
        shadow = buffer.bytes.copy()
        rows, where = [], random.permutation(16)
        for slot, place in enumerate(
            where[:8]
        ):  # items of a batch touch neither each other's blocks nor memory
            length = int(random.integers(1, 128)) * PAGE
            inside = int(random.integers(0, (512 * 1024 - length) // PAGE + 1)) * PAGE
            at = int(place) * MIB + int(random.integers(0, (MIB - length) // PAGE + 1)) * PAGE
            begin = slot * 512 * 1024 + inside
            if random.integers(2):
                rows.append(request(tr.WRITE, memory, begin, target, at, length))
                disk[at : at + length] = shadow[begin : begin + length]
            else:
                rows.append(request(tr.READ, memory, begin, target, at, length))
                shadow[begin : begin + length] = disk[at : at + length]
        rows.append(request(tr.FLUSH, 0, 0, target, 0, 0))
        done = rig.run(batch(*rows))
        assert (done.status == 0).all()
        assert np.array_equal(buffer.bytes, shadow)


def test_the_contract_holds(tmp_path: Path, rigs: Rigs) -> None:
    """All checks in one runtime's life each; a target is a slice of a namespace."""

    def slice_of(_: Path, number: int, size: int) -> MadeTarget:
        return MadeTarget(f"nvme://disk0/1?offset={number * MIB}&size={size}", size)

    for check in contract.CHECKS.values():
        rig = rigs({"memory_bytes": 512 * MIB})
        check(Subject("nvme", rig.runtime, tmp_path, slice_of))
        rig.close()


def test_what_is_written_is_in_the_image(tmp_path: Path, rigs: Rigs) -> None:
    image = image_of(tmp_path / "image")
    rig = rigs({"image": str(image), "memory_bytes": SPACE, "lba_bytes": 4096})
    buffer, memory = rig.memory(seed=3)
    target = rig.runtime.open(f"nvme://disk0/1?offset={5 * PAGE}&size={MIB}")
    assert (rig.move(tr.WRITE, memory, target, count=4, length=MIB // 4).status == 0).all()
    data = np.fromfile(image, dtype=np.uint8)
    assert np.array_equal(data[5 * PAGE : 5 * PAGE + MIB], buffer.bytes)
    assert not data[: 5 * PAGE].any()
    assert not data[5 * PAGE + MIB :].any()


def test_a_striped_target_lies_on_several_controllers(rigs: Rigs) -> None:
    roots = ",".join(f"nvme://disk{i}/1" for i in range(3))
    rig = rigs(count=3)
    buffer, memory = rig.memory(3 * MIB, seed=4)
    uri = f"striped://kv?roots={roots}&unit=65536&rot=1&offset={MIB}&size={3 * MIB}"
    striped = rig.runtime.open(uri)
    assert [shard["path"] for shard in rig.runtime.query(striped)["shards"]] == [
        f"disk{i}/1" for i in range(3)
    ]
    assert (rig.move(tr.WRITE, memory, striped, count=4, length=3 * MIB // 4).status == 0).all()
    wanted = buffer.bytes.reshape(-1, 65536).copy()
    for i in range(3):
        shard = rig.runtime.open(f"nvme://disk{i}/1?offset={MIB}&size={MIB}")
        assert (rig.move(tr.READ, memory, shard, length=MIB).status == 0).all()
        assert np.array_equal(buffer.bytes[:MIB].reshape(-1, 65536), wanted[(i - 1) % 3 :: 3])
    assert all(control.counters()["writes"] > 0 for control in rig.controls)


def test_a_batch_over_several_drives_and_striped_targets(rigs: Rigs) -> None:
    rig = rigs({"latency": 0.0005}, count=4, queues=2)
    buffer, memory = rig.memory(4 * MIB, seed=5)
    wanted = buffer.bytes.copy()
    pairs = [("disk0", "disk1"), ("disk2", "disk3")]
    targets = [
        rig.runtime.open(f"striped://t?roots=nvme://{a}/1,nvme://{b}/1&unit=16384&size={2 * MIB}")
        for a, b in pairs
    ]
    for direction in (tr.WRITE, tr.READ):
        rows = [
            request(direction, memory, (2 * i + t) * 65536, targets[t], i * 65536, 65536)
            for i in range(32)
            for t in range(2)
        ]
        assert (rig.run(batch(*rows)).status == 0).all()
        if direction == tr.WRITE:
            buffer.bytes[:] = 0
    assert np.array_equal(buffer.bytes, wanted)


def test_the_window_bounds_what_is_under_way(rigs: Rigs) -> None:
    """With room for one command, the drive never has two: its own count of those in flight tells."""
    rig = rigs({"latency": 0.0005, "max_entries": 2}, window_bytes=4096)
    _, memory = rig.memory(seed=6)
    target = rig.runtime.open("nvme://disk0/1")
    assert (rig.move(tr.WRITE, memory, target, count=16).status == 0).all()
    assert rig.control.counters()["writes"] == 16


@pytest.mark.parametrize(
    ("window", "commands", "size"),
    [({"window_commands": 6}, 6, 6 * PAGE), ({"window_bytes": 8 * PAGE}, 8, 8 * PAGE)],
)
def test_the_drive_never_has_more_than_the_window(
    window: dict[str, int], commands: int, size: int, rigs: Rigs
) -> None:
    """Over all queues, and though the CPU and a device may both submit."""
    rig = rigs({"latency": 0.002}, queues=3, **window)
    _, memory = rig.memory(seed=6)
    target = rig.runtime.open("nvme://disk0/1")
    rows = [request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(64)]
    first = rig.submit(batch(*rows[:32]))
    other = rig.runtime.submit(batch(*rows[32:])).handle
    assert other is not None
    for handle in (first, other):
        assert (rig.runtime.wait(handle, 60).status == 0).all()
    seen = rig.control.counters()
    assert 1 < seen["most_commands"] <= commands
    assert seen["most_bytes"] <= size


def test_caps_and_query_say_what_it_is(rigs: Rigs) -> None:
    rig = rigs({"mdts_bytes": 131072, "sgl": True})
    caps = rig.runtime.caps()
    assert caps["data_path"] == "nvme"
    said = caps["features_used"]["controller disk0"]
    assert "soft:disk0" in said and "131072" in said and "SGL" in said
    facts = rig.runtime.query(rig.runtime.open("nvme://disk0/1?offset=8192&size=4096", writable=False))
    assert (facts["kind"], facts["path"], facts["offset"], facts["size"]) == ("nvme", "disk0/1", 8192, 4096)


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("nvme://disk9/1", OSError, "no such controller"),
        ("nvme://disk0/7", OSError, "no such active namespace"),
        ("nvme://disk0/0", tr.InvalidUriError, "nsid"),
        ("nvme://disk0", tr.InvalidUriError, "nvme://name/nsid"),
        ("nvme://disk0/1?offset=512", tr.InvalidUriError, "multiple of 4096"),
        ("nvme://disk0/1?size=99999997952", tr.InvalidUriError, "beyond the namespace"),
        ("nvme://disk0/1?offset=16777216", tr.InvalidUriError, "beyond the namespace"),
        ("nvme://disk0/1?offset=9223372036854771712&size=8192", tr.InvalidUriError, "beyond the namespace"),
        ("nvme://disk0/1?unit=4096", tr.InvalidUriError, "known keys"),
        ("nvme://di sk/1", tr.InvalidUriError, "characters of"),
        ("mem://x?size=4096", tr.InvalidUriError, "NVMe runtime opens"),
        ("striped://x?roots=nvme://disk0/1?offset=4096", tr.InvalidUriError, "write '.' as %3F"),
        ("striped://x?roots=/tmp&offset=4096", tr.InvalidUriError, "is a folder"),
    ],
)
def test_bad_uris_are_refused(uri: str, error: type[Exception], words: str, rigs: Rigs) -> None:
    with pytest.raises(error, match=words):
        rigs().runtime.open(uri)


def test_a_format_with_metadata_is_refused(rigs: Rigs) -> None:
    with pytest.raises(OSError, match="metadata"):
        rigs({"metadata_bytes": 8}).runtime.open("nvme://disk0/1")


SOFT = {"transport": "soft", "name": "a", "memory_bytes": MIB}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"controllers": []}, "controllers has 0"),
        ({"controllers": "soft"}, "list of mappings"),
        ({"controllers": [{"name": "a"}]}, "'transport'"),
        ({"controllers": [{**SOFT, "transport": "pcie"}]}, "transport"),
        ({"controllers": [{**SOFT, "lba_byte": 512}]}, "nearest known key is 'lba_bytes'"),
        ({"controllers": [{**SOFT, "lba_bytes": True}]}, "lba_bytes=True"),
        ({"controllers": [{**SOFT, "lba_bytes": 768}]}, "lba_bytes=768"),
        ({"controllers": [{**SOFT, "latency": -1}]}, "latency=-1"),
        ({"controllers": [SOFT, SOFT]}, "name='a'"),
        ({"controllers": [{**SOFT, "name": "a/b"}]}, "name='a/b'"),
        ({"controllers": [{**SOFT, "namespaces": [{}]}]}, "namespaces"),
        ({"controllers": [{**SOFT, "block_devices": [{"nsid": 1}]}]}, "'device' is missing"),
        ({"controllers": [{**SOFT, "block_devices": [{"device": "/dev/null"}]}]}, "no block device"),
        ({"controllers": [SOFT], "queues": 0}, "queues=0"),
        ({"controllers": [SOFT], "command_timeout": 0}, "command_timeout=0"),
        ({"controllers": [SOFT], "sgl": 1}, "sgl=1"),
        ({"controllers": [SOFT], "unit": 5}, "unit=5"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tr.make_nvme_runtime(**settings)


def test_make_runtime_knows_the_kind() -> None:
    with tr.make_runtime({"kind": "nvme", "controllers": [SOFT]}) as runtime:
        runtime.open("nvme://a/1")
    with pytest.raises(ValueError, match="'controllers' is missing"):
        tr.make_runtime({"kind": "nvme"})


def test_several_namespaces_are_apart() -> None:
    spec = {
        "transport": "soft",
        "name": "a",
        "namespaces": [{"memory_bytes": MIB}, {"memory_bytes": 2 * MIB, "lba_bytes": 4096}],
    }
    with tr.make_nvme_runtime(controllers=[spec]) as runtime:
        sizes = [runtime.query(runtime.open(f"nvme://a/{i}"))["size"] for i in (1, 2)]
    assert sizes == [MIB, 2 * MIB]
