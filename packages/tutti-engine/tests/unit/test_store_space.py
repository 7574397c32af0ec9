# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tutti_engine.errors import GeometryError
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.slots import SlotFiles, is_written, opened
from tutti_engine.store.space import HEALED_CHUNKS, SpaceKeeper, SpaceSettings

CHUNK = 64 * 1024
RANKS = 2
PLACE = CHUNK * RANKS


def layout_in(*directories: Path, chunks: int = 20) -> StoreLayout:
    for directory in directories:
        directory.mkdir(exist_ok=True)
    return StoreLayout(tuple(map(str, directories)), 2, CHUNK // 2, CHUNK, 8, chunks)


class Disk:
    """Free room as a test says."""

    def __init__(self, free: int = 1 << 40) -> None:
        self.free = free
        self.looks = 0

    def __call__(self, directory: str) -> int:
        self.looks += 1
        return self.free

    def until_seen(self, free: int) -> None:
        """Set the free room and wait until it was looked at as a whole."""
        self.free = free
        before = self.looks
        wait_until(lambda: self.looks >= before + 6)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., SpaceKeeper]]:
    keepers = []

    def make(
        layout: StoreLayout,
        resident: tuple[int, ...] = (),
        *,
        free: Callable[[str], int] | None = None,
        retired: tuple[int, ...] = (),
        **settings: object,
    ) -> SpaceKeeper:
        settings = {"check_seconds": 0.005, "ahead_bytes": 4 * PLACE, **settings}
        keeper = SpaceKeeper(
            layout, RANKS, resident, SpaceSettings(**settings), retired=retired, free=free or Disk()
        )
        keepers.append(keeper)
        return keeper

    yield make
    for keeper in keepers:
        keeper.close()


def take_all(keeper: SpaceKeeper, count: int) -> list[int]:
    taken: list[int] = []

    def some() -> bool:
        taken.extend(keeper.ready(count - len(taken)))
        return len(taken) == count

    wait_until(some)
    return taken


def test_every_free_place_is_handed_out_once(keep: Callable[..., SpaceKeeper], tmp_path: Path) -> None:
    keeper = keep(layout_in(tmp_path / "a"), (3, 4), retired=(7,), min_free_bytes=1)
    assert sorted(take_all(keeper, 17)) == [slot for slot in range(20) if slot not in (3, 4, 7)]
    assert keeper.ready(5) == []
    assert keeper.coming() == 0


@pytest.mark.parametrize("prepare", ["fallocate", "written"])
def test_places_have_their_blocks_before_they_are_handed_out(
    prepare: str, keep: Callable[..., SpaceKeeper], tmp_path: Path
) -> None:
    layout = layout_in(tmp_path / "a", tmp_path / "b")
    keeper = keep(layout, prepare=prepare)
    for slot in take_all(keeper, 6):
        number, offset = layout.locate(slot, 0)
        for rank in range(RANKS):
            path = Path(layout.file_path(rank, number))
            assert path.stat().st_mode & 0o777 == 0o600
            with opened(path) as descriptor:
                assert prepare == "fallocate" or is_written(descriptor, offset, CHUNK)
    occupied = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*.seg"))
    assert 6 * PLACE <= occupied <= 20 * PLACE + (1 << 16)


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: real(descriptor, data[:4096], at))
    layout = layout_in(tmp_path / "a")
    SlotFiles(layout, 1, "written").prepare(0)
    with opened(Path(layout.file_path(0, 0))) as descriptor:
        assert is_written(descriptor, 0, CHUNK)


def test_what_is_written_already_is_not_written_again(tmp_path: Path) -> None:
    layout = layout_in(tmp_path / "a")
    files = SlotFiles(layout, 1, "written")
    files.prepare(2)
    number, offset = layout.locate(2, 0)
    path = Path(layout.file_path(0, number))
    with opened(path) as descriptor:
        os.pwrite(descriptor, b"data" * (CHUNK // 4), offset)
        os.fsync(descriptor)
    files.prepare(2)
    assert path.read_bytes()[offset : offset + 8] == b"datadata"
    files.empty(2)
    assert path.read_bytes()[offset : offset + CHUNK] == bytes(CHUNK)
    assert path.stat().st_blocks == 0


def test_nothing_is_handed_out_while_the_disk_is_short_and_it_heals(
    keep: Callable[..., SpaceKeeper], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    keeper = keep(layout_in(tmp_path / "a"), free=disk, min_free_bytes=1000 * PLACE)
    first = take_all(keeper, 10)
    disk.until_seen(997 * PLACE)
    assert keeper.stores_stopped
    assert keeper.ready(5) == []
    assert keeper.coming() == 0, "so that the planner evicts nothing for it"
    assert keeper.take_excess() == 3
    assert keeper.take_excess() == 0, "asked for once"
    keeper.let_go(first[:3])
    disk.until_seen(1000 * PLACE)
    assert keeper.ready(5) == [], "not yet: it would flap"
    disk.until_seen((1000 + HEALED_CHUNKS) * PLACE)
    wait_until(lambda: not keeper.stores_stopped)
    assert set(take_all(keeper, 8)) & set(first[:3]) == set(), "those given back come last"
    assert sum("min_free_bytes" in entry.message for entry in caplog.records) == 1


def test_no_more_is_promised_than_the_disk_has(keep: Callable[..., SpaceKeeper], tmp_path: Path) -> None:
    disk = Disk(1003 * PLACE)
    keeper = keep(
        layout_in(tmp_path / "a"),
        free=disk,
        min_free_bytes=1000 * PLACE,
        ahead_bytes=100 * PLACE,
        check_seconds=60,
    )
    assert len(keeper.ready(20)) == 3
    for _ in range(50):
        # What was handed out is not written yet, so the disk still looks as before.
        assert keeper.ready(20) == []
        time.sleep(0.001)


def test_more_is_asked_back_only_after_the_first_have_left(
    keep: Callable[..., SpaceKeeper], tmp_path: Path
) -> None:
    disk = Disk()
    keeper = keep(layout_in(tmp_path / "a"), tuple(range(20)), free=disk, min_free_bytes=1000 * PLACE)
    disk.until_seen(995 * PLACE)
    assert keeper.take_excess() == 5
    disk.until_seen(994 * PLACE)
    assert keeper.take_excess() == 0
    keeper.let_go([0, 1, 2, 3, 4])
    wait_until(lambda: keeper.take_excess() == 6)


def test_never_more_is_asked_back_than_there_is(keep: Callable[..., SpaceKeeper], tmp_path: Path) -> None:
    disk = Disk(0)
    keeper = keep(layout_in(tmp_path / "a"), (1, 2), free=disk, min_free_bytes=1 << 50)
    wait_until(lambda: keeper.take_excess() == 2)


def test_places_given_back_free_their_blocks(keep: Callable[..., SpaceKeeper], tmp_path: Path) -> None:
    layout = layout_in(tmp_path / "a")
    keeper = keep(layout, prepare="written", ahead_bytes=0)
    taken = take_all(keeper, 4)
    number, offset = layout.locate(taken[0], 0)
    with opened(Path(layout.file_path(0, number))) as descriptor:
        assert is_written(descriptor, offset, CHUNK)
        keeper.let_go(taken)
        wait_until(lambda: not is_written(descriptor, offset, CHUNK))


def test_a_disk_that_refuses_blocks_stops_the_making_until_it_gives_some(
    keep: Callable[..., SpaceKeeper],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tutti_engine.store.slots.os.posix_fallocate", refuse)
        keeper = keep(layout_in(tmp_path / "a"), prepare="fallocate")
        wait_until(lambda: "cannot be made" in caplog.text)
        assert keeper.ready(3) == []
    assert len(take_all(keeper, 20)) == 20


@pytest.mark.parametrize("prepare", ["sparse", "written"])
@pytest.mark.parametrize("seed", range(4))
def test_no_place_is_ever_in_two_hands(
    seed: int, prepare: str, keep: Callable[..., SpaceKeeper], tmp_path: Path
) -> None:
    chance, disk = random.Random(seed), Disk()
    resident = tuple(chance.sample(range(20), 6))
    keeper = keep(
        layout_in(tmp_path / "a"),
        resident,
        free=disk,
        prepare=prepare,
        min_free_bytes=1000 * PLACE,
        check_seconds=0.001,
    )
    held = set(resident)
    for _ in range(300):
        disk.free = chance.choice([1 << 40, 1 << 40, 990 * PLACE, 1004 * PLACE])
        if chance.random() < 0.6:
            given = keeper.ready(chance.randint(1, 4))
            assert not held & set(given)
            assert len(set(given)) == len(given)
            held |= set(given)
        else:
            count = keeper.take_excess() or chance.randint(0, 1)
            gone = chance.sample(sorted(held), min(count, len(held)))
            held -= set(gone)
            keeper.let_go(gone)
        time.sleep(chance.choice([0, 0, 0.001]))
    disk.until_seen(1 << 40)
    keeper.let_go(sorted(held))
    assert sorted(take_all(keeper, 20)) == list(range(20)), "none is lost"


@pytest.mark.parametrize(
    "wrong",
    [
        {"prepare": "zeroed"},
        {"min_free_bytes": -1},
        {"min_free_bytes": True},
        {"ahead_bytes": 0.5},
        {"check_seconds": 0},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(GeometryError, match=next(iter(wrong))):
        SpaceSettings(**wrong)  # type: ignore[arg-type]
