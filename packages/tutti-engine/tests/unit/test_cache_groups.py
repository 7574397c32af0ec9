# SPDX-License-Identifier: Apache-2.0
"""Several cache groups: what a hit is, and that each group's pages go through its own block table."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine import ChunkKey, Geometry, GeometryError, LoadResult, StoreResult, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.geometry import CacheGroup
from tutti_engine.movers.plain import PlainMover, checksum
from tutti_engine.plan import SKIP_BLOCK
from tutti_engine.planning.planner import Planner
from tutti_engine.planning.prefix_hits import longest_hit

FULL = CacheGroup((0, 2), block_tokens=16, page_bytes=512)
WINDOW = CacheGroup((1, 3), block_tokens=32, page_bytes=1000, window=40)
# Chunks of 64 tokens: four blocks of the first group, two of the second.
GEOMETRY = Geometry.of_groups([FULL, WINDOW], blocks_per_chunk=2)


def test_sizes_fit_the_largest_group():
    assert (GEOMETRY.num_layers, GEOMETRY.block_tokens, GEOMETRY.chunk_tokens) == (4, 32, 64)
    assert (GEOMETRY.blocks_of(0), GEOMETRY.blocks_of(1)) == (4, 2)
    assert GEOMETRY.segment_data_bytes == 4 * 512
    assert GEOMETRY.held_layers == (0, 1, 2, 3)


def test_one_group_is_what_a_geometry_without_groups_has():
    plain = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=4, page_bytes=512)
    group = CacheGroup((0, 1, 2), block_tokens=16, page_bytes=512)
    assert plain == Geometry.of_groups([group], blocks_per_chunk=4)
    assert not plain.is_partial


@pytest.mark.parametrize(
    ("groups", "layers", "message"),
    [
        ([CacheGroup((0, 1), 16, 512), CacheGroup((1, 2), 16, 512)], None, "each once"),
        ([CacheGroup((0, 2), 16, 512)], None, "each once"),
        ([CacheGroup((0, 1, 2), 16, 512)], 2, "or fewer"),
        ([], None, "at least one"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, layers, message):
    with pytest.raises(GeometryError, match=message):
        Geometry.of_groups(groups, blocks_per_chunk=1, num_layers=layers)


def test_a_group_has_a_window_or_a_span():
    with pytest.raises(GeometryError, match="not both"):
        CacheGroup((0,), 16, 512, window=32, span=32)
    with pytest.raises(GeometryError, match="window"):
        CacheGroup((0,), 16, 512, window=0)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ([1, 1, 1, 1], 4),
        ([0, 0, 0, 1], 4),  # 40 tokens before the end lie in the last chunk
        ([1, 1, 1, 0], 3),
        ([1, 0, 1, 0], 3),
        ([0, 1, 0, 0], 2),
        ([0, 0, 0, 0], 0),
    ],
)
def test_a_hit_ends_where_the_window_is_whole(present, expected):
    assert longest_hit(GEOMETRY, 4, lambda n, group: bool(present[n])) == expected


@given(
    present=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    window=st.integers(1, 400),
    span=st.integers(1, 400),
    first=st.integers(0, 3),
    held=st.integers(0, 63),
)
def test_a_hit_is_the_longest_that_every_group_can_go_on_from(present, window, span, first, held):
    geometry = Geometry.of_groups(
        [
            CacheGroup((0,), 16, 512),
            CacheGroup((1,), 16, 512, window=window),
            CacheGroup((2,), 16, 512, span=span),
        ],
        blocks_per_chunk=4,
    )
    held_tokens = 64 * first + held

    def serves(hit):
        end = 64 * (first + hit)
        for token in range(held_tokens, end):
            chunk = token // 64 - first
            if token > end - window and not present[chunk][0]:
                return False
            if token >= end - end % span and not present[chunk][1]:
                return False
        return True

    found = longest_hit(
        geometry,
        len(present),
        lambda n, group: present[n][group - 1],
        first_chunk=first,
    )
    assert found == max(hit for hit in range(len(present) + 1) if hit == 0 or serves(hit))


class Server:
    """Pages of both groups lie in the same memory: block b of layer 0 and of layer 1 are the same bytes."""

    def __init__(self):
        self.shared = [bytearray(64 * 1024), bytearray(64 * 1024)]
        # 1024 bytes a block, of which a group's page takes its first ones.
        self.mover = StridedMover(self.shared)
        self.engine = TuttiEngine(
            GEOMETRY,
            chunk_ids=range(8),
            backend=MemoryBackend(num_layers=4, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8),
        )
        self.engine.bind(self.mover)

    def fill(self, layer, block, value):
        self.mover.page(layer, block)[:] = bytes([value]) * self.mover.size(layer)

    def read(self, layer, block):
        return bytes(self.mover.page(layer, block))

    def store(self, *chunks):
        plan = self.engine.plan_store([(ChunkKey(key), blocks) for key, blocks in chunks], [])
        self.engine.store(plan)
        return self.settle()

    def load(self, *chunks):
        plan = self.engine.plan_load([(ChunkKey(key), blocks) for key, blocks in chunks])
        self.engine.load(plan)
        return self.settle()

    def settle(self):
        assert self.engine.wait_idle(time.monotonic() + 30)
        (result,) = self.engine.settle()
        return result


class StridedMover(PlainMover):
    """Pages of layers 0 and 1 in one buffer, of 2 and 3 in the other, 1024 bytes from one to the next."""

    def __init__(self, buffers):
        self._buffers = [memoryview(buffers[layer // 2]) for layer in range(4)]

    def size(self, layer):
        return (FULL if layer % 2 == 0 else WINDOW).page_bytes

    def page(self, layer, block):
        return self._buffers[layer][block * 1024 : block * 1024 + self.size(layer)]

    def _pack(self, layer, blocks, slot):
        target = self._slot(slot)
        data = b"".join(self.page(layer, b) for b in blocks)
        target[: len(data)] = data
        target[len(data) :] = bytes(len(target) - len(data))
        return checksum(data)

    def _unpack(self, layer, blocks, slot, expected):
        source, size = self._slot(slot), self.size(layer)
        if checksum(source[: len(blocks) * size]) != expected:
            return False
        for index, block in enumerate(blocks):
            if block != SKIP_BLOCK:
                self.page(layer, block)[:] = source[index * size : (index + 1) * size]
        return True

    def _check(self, layer, blocks):
        assert all(0 <= block < 64 for block in blocks)


@pytest.fixture
def server():
    made = Server()
    yield made
    made.engine.shutdown()


def test_each_group_goes_through_its_own_table_and_touches_nothing_else(server):
    full, window = (1, 2, 3, 4), (10, 11)
    for layer in (0, 2):
        for block in full:
            server.fill(layer, block, 16 * layer + block)
    for layer in (1, 3):
        for block in window:
            server.fill(layer, block, 16 * layer + block)
    stored = server.store((b"k", (full, window)))
    assert stored.errno == 0 and stored.bytes_written == 4 * GEOMETRY.segment_bytes

    for buffer in server.shared:
        buffer[:] = b"\xee" * len(buffer)
    untouched = [bytes(buffer) for buffer in server.shared]
    moved_full, moved_window = (20, 21, 22, 23), (SKIP_BLOCK, 30)
    loaded = server.load((b"k", (moved_full, moved_window)))
    assert loaded.failed == () and loaded.bytes_read == 4 * GEOMETRY.segment_bytes
    for layer in (0, 2):
        for old, new in zip(full, moved_full):
            assert server.read(layer, new) == bytes([16 * layer + old]) * 512
    for layer in (1, 3):
        assert server.read(layer, 30) == bytes([16 * layer + 11]) * 1000
    for number, buffer in enumerate(server.shared):
        for block in range(64):
            size = 512 if block in moved_full else 1000 if block == 30 else 0
            start = block * 1024
            kept = untouched[number][start + size : start + 1024]
            assert buffer[start + size : start + 1024] == kept, f"block {block} was written beyond its page"


def test_a_chunk_without_a_window_serves_inside_a_hit_only(server):
    keys = [ChunkKey(b"a"), ChunkKey(b"b"), ChunkKey(b"c")]
    stored = server.store(
        (b"a", ((1, 2, 3, 4), ())), (b"b", ((5, 6, 7, 8), (40, 41))), (b"c", ((9, 10, 11, 12), ()))
    )
    assert stored.errno == 0
    assert stored.bytes_written == (3 * 2 + 2) * GEOMETRY.segment_bytes
    planner = server.engine.planner
    assert planner.lookup_prefix(keys) == 2
    assert planner.lookup_prefix(keys[:1]) == 0
    assert planner.lookup_prefix(keys[1:], first_chunk=1) == 1
    # Only what is named is read.
    result = server.load((b"a", ((20, 21, 22, 23), ())), (b"b", ((24, 25, 26, 27), (50, 51))))
    assert result.failed == () and result.bytes_read == (2 * 2 + 2) * GEOMETRY.segment_bytes


def test_pages_that_were_never_stored_are_never_given(server):
    server.store((b"a", ((1, 2, 3, 4), ())))
    before = [bytes(buffer) for buffer in server.shared]
    result = server.load((b"a", ((20, 21, 22, 23), (50, 51))))
    assert result.failed == (0,) and result.corrupt == (0,)
    for buffer, old in zip(server.shared, before):
        for block in (50, 51):
            assert buffer[block * 1024 : (block + 1) * 1024] == old[block * 1024 : (block + 1) * 1024]
    assert server.engine.lookup_prefix([ChunkKey(b"a")]) == 0


def test_layer_by_layer_as_well(server):
    server.store((b"a", ((1, 2, 3, 4), (40, 41))), (b"b", ((5, 6, 7, 8), ())))
    plan = server.engine.plan_load(
        [(ChunkKey(b"a"), ((20, 21, 22, 23), ())), (ChunkKey(b"b"), ((24, 25, 26, 27), ()))]
    )
    transfers = server.engine.load_layers(plan)
    assert all(transfer.wait(time.monotonic() + 30) and transfer.ok for transfer in transfers)
    result = server.settle()
    assert result.failed == () and result.bytes_read == 2 * 2 * GEOMETRY.segment_bytes


def test_a_plan_for_other_groups_is_refused(server):
    with pytest.raises(ValueError, match="1 groups, this rank has 2"):
        server.store((b"a", ((1, 2, 3, 4),)))


def test_a_rank_with_fewer_layers_leaves_the_last_segments_empty():
    geometry = Geometry.of_groups([CacheGroup((0, 1), 16, 512)], blocks_per_chunk=4, num_layers=3)
    pages = [memoryview(bytearray(b"%d" % n * 512 * 8)) for n in range(2)]
    engine = TuttiEngine(
        geometry,
        chunk_ids=range(2),
        backend=MemoryBackend(num_layers=3, segment_bytes=geometry.segment_bytes, num_chunks=2),
    )
    engine.bind(PlainMover(geometry, pages))
    engine.store(engine.plan_store([(ChunkKey(b"a"), ((0, 1, 2, 3),))]))
    assert engine.wait_idle(time.monotonic() + 30)
    (stored,) = engine.settle()
    assert len(stored.checksums[0]) == 3 * 8 and stored.checksums[0][16:] == bytes(8)
    assert stored.bytes_written == 2 * geometry.segment_bytes
    for page in pages:
        page[:] = bytes(len(page))
    engine.load(engine.plan_load([(ChunkKey(b"a"), ((4, 5, 6, 7),))]))
    assert engine.wait_idle(time.monotonic() + 30)
    (loaded,) = engine.settle()
    assert loaded.failed == ()
    assert [bytes(page[4 * 512 :]) for page in pages] == [b"0" * 2048, b"1" * 2048]
    engine.shutdown()


def test_what_a_chunk_lacks_is_known_after_a_restart(server):
    keys = [ChunkKey(b"a"), ChunkKey(b"b")]
    stored = server.store((b"a", ((1, 2, 3, 4), (40, 41))), (b"b", ((5, 6, 7, 8), ())))
    records = [
        Record(key, slot, slot << 24, (sums,), 0)
        for slot, (key, sums) in enumerate(zip(keys, stored.checksums))
    ]
    planner = Planner(GEOMETRY, range(8), records=records)
    assert planner.resident_chunks == 2
    assert planner.lookup_prefix(keys) == 1
    complete = [records[0], records[1]._replace(checksums=records[0].checksums)]
    assert Planner(GEOMETRY, range(8), records=complete).lookup_prefix(keys) == 2


def test_ranks_that_load_what_one_of_them_stored():
    planner = Planner(Geometry(1, 16, 1, 512), range(4), ranks=1, load_ranks=2)
    plan = planner.plan_store([(ChunkKey(b"a"), ((1,),))])
    assert planner.complete_store(0, StoreResult(plan.plan_id, (b"s" * 8,)))
    load = planner.plan_load([(ChunkKey(b"a"), ((2,),))])
    assert not planner.complete_load(LoadResult(load.plan_id))
    assert planner.pending_loads == 1
    assert planner.complete_load(LoadResult(load.plan_id))
    assert planner.pending_loads == 0
