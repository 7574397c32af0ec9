# SPDX-License-Identifier: Apache-2.0
"""Statistics through vLLM's own classes: joined over ranks and sides, carried, logged, shown."""

import functools
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from tutti_vllm.connector_v1 import TuttiConnectorV1
from tutti_vllm.metrics.metric_table import METRICS
from tutti_vllm.metrics.stats import TuttiStats
from tutti_vllm.payload import make_payload

TRANSFER = KVTransferConfig(
    kv_connector="TuttiConnectorV1",
    kv_connector_module_path="tutti_vllm.connector",
    kv_role="kv_both",
    kv_connector_extra_config={"capacity_bytes": 1},
)
MIB = 1 << 20


def rank_stats(rank, size, wait):
    return TuttiStats(
        make_payload(
            {"load_bytes@uring": size, "load_seconds@uring": 0.5, "worker.load_waves": 1},
            {f"load_rate@uring@{rank}": size / 0.5},
            {"load_wait": [wait]},
        )
    )


@pytest.fixture
def shown():
    """Registers metrics as vLLM does, in a registry of their own; returns how to record and how to read."""
    registry = CollectorRegistry()

    def into(kind):
        return staticmethod(functools.partial(kind, registry=registry))

    class Prom(KVConnectorProm):
        _gauge_cls, _counter_cls, _histogram_cls = into(Gauge), into(Counter), into(Histogram)

    engines = {0: ["model", "0"], 1: ["model", "1"]}
    prom = Prom(SimpleNamespace(kv_transfer_config=TRANSFER), ["model_name", "engine"], engines)

    def read(name, engine="0", **labels):
        return registry.get_sample_value(name, {"model_name": "model", "engine": engine, **labels})

    return SimpleNamespace(observe=prom.observe, read=read, registry=registry)


def test_the_stats_of_ranks_and_of_the_scheduler_join_and_cross_processes():
    outputs = []
    for rank, wait in enumerate((0.2, 0.3)):
        output = ModelRunnerOutput(req_ids=[], req_id_to_index={})
        output.kv_connector_output = KVConnectorOutput(kv_connector_stats=rank_stats(rank, 10, wait))
        outputs.append(output)
    joined = KVOutputAggregator(2).aggregate(outputs).kv_connector_output.kv_connector_stats
    joined = joined.aggregate(TuttiStats(make_payload({"hits": 1}, {"resident_chunks": 4.0})))
    carried = msgspec.msgpack.decode(msgspec.msgpack.encode(joined.to_dict()))
    stats = TuttiConnectorV1.build_kv_connector_stats(carried)
    assert stats.data["counts"] == {
        "load_bytes@uring": 20,
        "load_seconds@uring": 1.0,
        "worker.load_waves": 2,
        "hits": 1,
    }
    assert stats.data["gauges"] == {"load_rate@uring@0": 20, "load_rate@uring@1": 20, "resident_chunks": 4}
    assert stats.data["samples"] == {"load_wait": [0.2, 0.3]}


def test_empty_stats_are_empty_until_something_comes_and_after_a_reset():
    stats = TuttiConnectorV1.build_kv_connector_stats(None)
    assert stats.is_empty()
    stats.aggregate(rank_stats(0, 1, 0.1))
    assert not stats.is_empty()
    stats.reset()
    assert stats.is_empty()


def test_vllms_log_prints_one_short_line():
    printed = []
    log = KVConnectorLogging(TRANSFER)
    log.observe(rank_stats(0, 256 * MIB, 0.2).to_dict())
    log.observe(rank_stats(0, 256 * MIB, 0.2).to_dict())
    log.observe(
        make_payload({"hits": 2, "hit_tokens": 640}, {"resident_chunks": 5.0, "capacity_chunks": 9.0})
    )
    log.log(lambda text, *values: printed.append(text % values))
    log.log(lambda text, *values: printed.append(text % values))
    (line,) = printed
    assert line == (
        "KV Transfer metrics: hits=2, hit_tokens=640, loaded_MiB=512.0, stored_MiB=0.0, load_GiB/s=0.5, "
        "chunks=5, room_for=9"
    )


def test_trouble_is_in_the_line_when_there_is_any():
    stats = TuttiStats(
        make_payload(
            {"load_failed_chunks": 1, "store_failed_chunks": 2, "refused_chunks": 4}, {"degraded": 1.0}
        )
    )
    line = stats.reduce()
    assert (line["failed_chunks"], line["dropped_chunks"], line["degraded"]) == (3, 4, 1)
    assert "evicted_chunks" not in line


def test_every_metric_is_registered_under_its_documented_name(shown):
    shown.observe(rank_stats(0, 10, 0.2).to_dict())
    names = set()
    for family in shown.registry.collect():
        names.add(family.name + ("_total" if family.type == "counter" else ""))
    assert names == {metric.shown_name for metric in METRICS}


def test_numbers_are_shown_by_engine(shown):
    shown.observe(rank_stats(0, 10, 0.2).to_dict(), 0)
    shown.observe(rank_stats(1, 30, 0.02).to_dict(), 0)
    shown.observe(make_payload({"evicted_chunks": 3}, {"resident_chunks": 7.0}), 1)
    labels = {"direction": "load", "path": "uring"}
    assert shown.read("vllm:tutti_transfer_bytes_total", **labels) == 40
    assert shown.read("vllm:tutti_transfer_seconds_total", **labels) == 1.0
    assert shown.read("vllm:tutti_transfer_bytes_per_second", rank="1", **labels) == 60
    assert shown.read("vllm:tutti_load_seconds_count") == 2
    assert shown.read("vllm:tutti_load_seconds_bucket", le="0.025") == 1
    assert shown.read("vllm:tutti_detail_total", side="worker", counter="load_waves") == 2
    assert shown.read("vllm:tutti_removed_chunks_total", reason="evicted") == 0
    assert shown.read("vllm:tutti_removed_chunks_total", "1", reason="evicted") == 3
    assert shown.read("vllm:tutti_resident_chunks", "1") == 7


def test_what_is_known_beforehand_shows_as_0_from_the_start(shown):
    assert shown.read("vllm:tutti_hits_total") == 0
    assert shown.read("vllm:tutti_dropped_chunks_total", "1", reason="write_budget") == 0
    assert shown.read("vllm:tutti_degraded") == 0
    assert shown.read("vllm:tutti_write_budget_left_bytes") is None, "there may be no budget"
    assert shown.read("vllm:tutti_shared_up") is None, "0 would be an alarm where no store is shared"


def test_a_payload_that_cannot_be_read_ends_nothing(shown, caplog):
    with caplog.at_level(logging.ERROR):
        shown.observe({"counts": {"hits": "many"}}, 0)
    assert "metrics of a step are lost" in caplog.text
    shown.observe(make_payload({"hits": 1}), 0)
    assert shown.read("vllm:tutti_hits_total") == 1


def test_a_cache_that_could_not_be_opened_is_told_once():
    connector = TuttiConnectorV1.__new__(TuttiConnectorV1)
    connector._scheduler = connector._worker = None
    connector._told_absence = False
    assert connector.get_kv_connector_stats().data["gauges"] == {"degraded": 1.0}
    assert connector.get_kv_connector_stats() is None
