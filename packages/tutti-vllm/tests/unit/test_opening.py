# SPDX-License-Identifier: Apache-2.0
import threading
from types import SimpleNamespace

import pytest

from tutti_engine import Geometry
from tutti_engine.errors import RootError
from tutti_engine.movers.plain import PlainMover
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore
from tutti_engine.store.view import LocalStoreView
from tutti_engine.testing.device import SimulatedDeviceMover
from tutti_vllm.scheduler_side.load_mode import LoadRules
from tutti_vllm.settings.settings import Settings, SettingsError
from tutti_vllm.start import opening
from tutti_vllm.start.opening import _open_store, _replica
from tutti_vllm.start.topology import Topology

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
NAMESPACE = Namespace({"test": "opening"})


def settings(root, **more):
    return Settings.parse({"capacity_bytes": 16 << 20, "root": str(root), **more})


@pytest.mark.parametrize(
    ("replicas", "size", "index", "expected"),
    [(0, 1, 0, (0, 1)), (0, 4, 3, (3, 4)), (2, 1, 1, (1, 2)), (0, 1, 1, None), (2, 4, 2, None)],
)
def test_data_parallel_engines_are_replicas(replicas, size, index, expected, tmp_path):
    given = settings(tmp_path, replicas=replicas)
    config = SimpleNamespace(data_parallel_size=size, data_parallel_index=index)
    if expected is None:
        with pytest.raises(SettingsError, match="set replicas"):
            _replica(given, config)
    else:
        assert _replica(given, config) == expected


def test_settings_reach_the_store(tmp_path):
    given = settings(tmp_path, min_free_bytes=1, prepare="fallocate")
    with _open_store(given, NAMESPACE, GEOMETRY, 1, (1, 2)) as store:
        assert isinstance(store, LocalStore)
        assert store.places is not None
        assert store.directory.name.endswith("-1of2")
    with _open_store(settings(tmp_path, read_only=True), NAMESPACE, GEOMETRY, 1, (1, 2)) as store:
        assert isinstance(store, LocalStoreView)
    with pytest.raises(RootError, match="there is no store"):
        _open_store(settings(tmp_path, read_only=True), NAMESPACE, GEOMETRY, 1, (0, 2))


def test_a_start_that_fails_late_leaves_no_thread_and_no_lock(tmp_path, monkeypatch):
    pytest.importorskip("tutti_kv_kernels", reason="tutti-kv-kernels is not installed")
    for name, value in {
        "make_geometry": GEOMETRY,
        "make_namespace": NAMESPACE,
        "check_vllm": "0.32.0",
        "read_topology": Topology(),
        "_replica": (0, 1),
        "_load_rules": LoadRules(),
    }.items():
        monkeypatch.setattr(opening, name, lambda *_, value=value: value)
    monkeypatch.setattr(opening, "_follow_events", lambda *_: 1 / 0)
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            opening._open_scheduler(
                settings(tmp_path),
                SimpleNamespace(parallel_config=None),
                SimpleNamespace(hash_block_size=16),
            )
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("config", "late"),
    [
        (SimpleNamespace(needs_kv_cache_zeroing=False), True),
        # vLLM's second model runner writes zeros before it tells a connector of the step.
        (SimpleNamespace(needs_kv_cache_zeroing=True), False),
        (SimpleNamespace(), False),
    ],
)
def test_no_page_is_copied_late_where_vllm_may_write_zeros_to_new_blocks(config, late):
    found = opening._execution(SimulatedDeviceMover(GEOMETRY, []), config)
    assert found.late_copies is late
    assert found.store_bank_bytes == opening.DEVICE_SETTINGS.store_bank_bytes
    assert opening._execution(PlainMover(GEOMETRY, []), config) is None
