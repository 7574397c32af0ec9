# SPDX-License-Identifier: Apache-2.0
"""The connector against vLLM's own classes."""

import inspect
import logging
import pickle
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults, supports_hma
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput

from tutti_engine import LoadResult, StoreResult
from tutti_vllm.connector_v1 import TuttiConnectorV1, TuttiMetadata, TuttiWorkerMetadata
from tutti_vllm.messages import StepOrders, StepReport
from tutti_vllm.scheduler_side.adapters import Adapters


def transfer_config(**extra):
    return KVTransferConfig(
        kv_connector="TuttiConnectorV1",
        kv_connector_module_path="tutti_vllm.connector",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )


def test_vllm_finds_the_class():
    found = KVConnectorFactory.get_connector_class(transfer_config(capacity_bytes=1))
    assert found is TuttiConnectorV1
    assert supports_hma(found)
    assert found.__abstractmethods__ == frozenset()


def test_settings_are_checked_when_vllm_looks_the_class_up():
    with pytest.raises(SystemExit, match=r"'capacity_byte'.*did you mean 'capacity_bytes'"):
        KVConnectorFactory.get_connector_class(transfer_config(capacity_byte=1))


def test_only_the_connector_can_be_looked_up():
    import tutti_vllm.connector as module

    assert module.TuttiConnectorV1 is TuttiConnectorV1
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


class Broken:
    """Fails whatever is asked of it."""

    def __getattr__(self, name):
        raise RuntimeError(f"broken: {name}")


def bare_connector():
    connector = TuttiConnectorV1.__new__(TuttiConnectorV1)
    connector._scheduler = Broken()
    connector._worker = Broken()
    connector._connector_metadata = TuttiMetadata(StepOrders())
    return connector


REQUEST = SimpleNamespace(request_id="r", lora_request=None, pooling_params=None)


METADATA = TuttiMetadata(StepOrders())
BROKEN_HOOKS = [
    ("bind_connector_metadata", (METADATA,), None),
    ("build_connector_meta", (None,), TuttiMetadata(StepOrders(rewritten=None))),
    ("handle_preemptions", (METADATA,), None),
    ("on_new_request", (REQUEST,), None),
    ("register_kv_caches", ({},), None),
    ("restore_kv_caches", (), None),
    ("unregister_kv_caches", (), None),
    ("get_num_new_matched_tokens", (REQUEST, 0), (0, False)),
    ("update_state_after_alloc", (REQUEST, None, 32), None),
    (
        "update_connector_output",
        (KVConnectorOutput(kv_connector_worker_meta=TuttiWorkerMetadata(StepReport())),),
        None,
    ),
    ("request_finished", (REQUEST, []), (False, None)),
    ("request_finished_all_groups", (REQUEST, ([], [])), (False, None)),
    ("get_transfer_results", (set(),), KVConnectorTransferResults()),
    ("bind_kv_cache_manager", (None,), None),
    ("has_pending_push_work", (), False),
    ("reset_cache", (), False),
    ("start_load_kv", (None,), None),
    ("wait_for_layer_load", ("layer",), None),
    ("save_kv_layer", ("layer", None, None), None),
    ("wait_for_save", (), None),
    ("get_finished", (set(),), (None, None)),
    ("get_block_ids_with_load_errors", (), set()),
    ("build_connector_worker_meta", (), None),
    ("get_kv_connector_stats", (), None),
    ("take_events", (), ()),
    ("shutdown", (), None),
]
ASKED_AT_THE_START = {
    "__init__",
    "build_kv_connector_stats",
    "build_prom_metrics",
    "requires_piecewise_for_cudagraph",
    "supports_sleep_mode",
}
"""Where an exception means that the server does not start, or that somebody passed nonsense."""


@pytest.mark.parametrize(("hook", "arguments", "answer"), BROKEN_HOOKS)
def test_no_failure_of_the_cache_leaves_a_callback(hook, arguments, answer, caplog):
    with caplog.at_level(logging.ERROR):
        found = getattr(bare_connector(), hook)(*arguments)
    assert getattr(found, "orders", found) == getattr(answer, "orders", answer)


def test_every_callback_is_tried_with_a_broken_cache():
    own = {"counters", "degraded", "in_use"}
    hooks = {name for name, member in vars(TuttiConnectorV1).items() if inspect.isroutine(member)}
    hooks = {name for name in hooks if not name.startswith("_") or name == "__init__"}
    assert hooks - own - ASKED_AT_THE_START == {hook for hook, _, _ in BROKEN_HOOKS}


def test_a_reset_leaves_the_pages_of_this_process_alone_before_anything_else(monkeypatch):
    # An engine in its caller's process that goes to sleep resets first, and tells its workers nothing.
    order = []
    monkeypatch.setattr("tutti_vllm.connector_v1.leave_pages_here", lambda: order.append("pages"))
    connector = bare_connector()
    connector._scheduler = SimpleNamespace(reset=lambda: order.append("reset") or True)
    assert connector.reset_cache() is True
    assert order == ["pages", "reset"]


def test_loads_of_requests_whose_kv_is_not_for_everybody_are_never_promised():
    seen = []
    connector = bare_connector()
    connector._scheduler = SimpleNamespace(
        add_request=lambda request, adapter: seen.append(request), adapters=Adapters()
    )
    for special in ({"lora_request": object()}, {"pooling_params": object()}, {"prompt_embeds": object()}):
        connector.on_new_request(
            SimpleNamespace(**({"lora_request": None, "pooling_params": None} | special))
        )
    assert seen == []
    connector.on_new_request(REQUEST)
    assert seen == [REQUEST]


def test_requests_with_images_that_vllm_only_numbers_are_not_looked_after():
    seen = []
    connector = bare_connector()
    connector._scheduler = SimpleNamespace(
        add_request=lambda request, adapter: seen.append(request), adapters=Adapters()
    )
    text, image = (
        SimpleNamespace(**vars(REQUEST), mm_features=each, resumable=False) for each in ([], [object()])
    )
    connector._media_have_names = False
    connector.on_new_request(text)
    connector.on_new_request(image)
    # An image may come with its next input.
    connector.on_new_request(SimpleNamespace(**vars(text) | {"resumable": True}))
    assert seen == [text]
    connector._media_have_names = True
    connector.on_new_request(image)
    assert seen == [text, image]


def test_orders_and_reports_cross_processes():
    orders = TuttiMetadata(StepOrders())
    assert pickle.loads(pickle.dumps(orders)).orders == orders.orders
    report = TuttiWorkerMetadata(StepReport({0: (LoadResult(1), StoreResult(2, (b"x", None)))}))
    assert pickle.loads(pickle.dumps(report)).report == report.report


def test_vllm_joins_the_reports_of_all_ranks():
    outputs = []
    for rank in range(2):
        output = ModelRunnerOutput(req_ids=[], req_id_to_index={})
        output.kv_connector_output = KVConnectorOutput(
            finished_recving={"r"},
            invalid_block_ids={rank},
            kv_connector_worker_meta=TuttiWorkerMetadata(StepReport({rank: (LoadResult(7),)})),
        )
        outputs.append(output)
    joined = KVOutputAggregator(2).aggregate(outputs).kv_connector_output
    assert joined.kv_connector_worker_meta.report.results == {0: (LoadResult(7),), 1: (LoadResult(7),)}
    assert joined.finished_recving == {"r"} and joined.invalid_block_ids == {0, 1}
    assert EMPTY_MODEL_RUNNER_OUTPUT.kv_connector_output is None
