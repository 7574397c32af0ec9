# SPDX-License-Identifier: Apache-2.0
"""The installed vLLM is the one that the connector was written for: every hook, every field that is read.

Run on a newer vLLM this shows what changed there before anybody's server does.
"""

import dataclasses
import inspect
import re

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.config import KVTransferConfig, ModelConfig, MultiModalConfig, ParallelConfig
from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from tutti_vllm.connector_v1 import TuttiConnectorV1, TuttiMetadata, TuttiWorkerMetadata
from tutti_vllm.metrics.prom_metrics import TuttiPromMetrics
from tutti_vllm.metrics.stats import TuttiStats

OWN = {"counters", "degraded", "in_use", "restore_kv_caches", "supports_sleep_mode", "unregister_kv_caches"}
"""Public methods that vLLM never calls, or only 0.33. Any other without a base method waits in vain."""

HOOKS = """
bind_connector_metadata bind_gpu_block_pool bind_kv_cache_manager build_connector_meta
build_connector_worker_meta build_kv_connector_stats build_prom_metrics clear_connector_metadata
finish_forward get_block_ids_with_load_errors get_external_cache_hit_sources get_finished
get_finished_count get_handshake_metadata get_kv_connector_kv_cache_events get_kv_connector_stats
get_loaded_kv_cache_group_ids get_mem_pool_context get_num_new_matched_tokens
get_required_kvcache_layout get_transfer_results handle_preemptions has_connector_metadata
has_pending_block_frees has_pending_push_work on_new_request register_finished_partial_tail
register_kv_caches request_finished requires_kv_delivery requires_piecewise_for_cudagraph
reset_cache reset_capture_state restore_kv_caches role save_kv_layer set_host_xfer_buffer_ops
set_xfer_handshake_metadata set_xfer_handshake_metadata_pp_aware shutdown start_load_kv
supports_divergent_local_hybrid_hits supports_sleep_mode take_events unregister_kv_caches
update_connector_output update_state_after_alloc wait_for_layer_load wait_for_save
"""
"""Hooks that were looked at, those of 0.33 included."""

PAIRS = [
    (TuttiConnectorV1, base.KVConnectorBase_V1),
    (TuttiWorkerMetadata, base.KVConnectorWorkerMetadata),
    (TuttiMetadata, base.KVConnectorMetadata),
    (TuttiStats, KVConnectorStats),
    (TuttiPromMetrics, KVConnectorPromMetrics),
]


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def function(cls, name):
    member = inspect.getattr_static(cls, name)
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def overridden():
    for ours, theirs in PAIRS:
        for name in vars(ours):
            # vLLM makes connectors and their metrics; messages are made here.
            made = name == "__init__" and ours in (TuttiConnectorV1, TuttiPromMetrics)
            if callable(getattr(theirs, name, None)) and (made or not name.startswith("__")):
                yield pytest.param(ours, theirs, name, id=f"{ours.__name__}.{name}")


def unacceptable(ours, theirs):
    """Return why a call that fits ``theirs`` may not fit ``ours``, None if it always does."""
    mine = list(inspect.signature(ours).parameters.values())[1:]
    rest = {each.kind for each in mine} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    wanted = list(inspect.signature(theirs).parameters.values())[1:]
    names = [each.name for each in mine]
    for position, each in enumerate(wanted):
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            if each.kind not in rest:
                return f"{each} is not taken"
        elif each.name not in names:
            if not rest:
                return f"parameter {each.name} is not taken"
        elif each.kind is each.POSITIONAL_OR_KEYWORD and names.index(each.name) != position:
            return f"parameter {each.name} stands elsewhere"
    taken = {each.name for each in wanted}
    for each in mine:
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.default is each.empty and not variadic and each.name not in taken:
            return f"parameter {each.name} is asked for and never given"
    return None


@pytest.mark.parametrize(("ours", "theirs", "name"), list(overridden()))
def test_an_overridden_method_takes_what_vllm_gives(ours, theirs, name):
    assert unacceptable(function(ours, name), function(theirs, name)) is None


def test_the_check_of_signatures_sees_what_does_not_fit():
    def theirs(self, a, b, *, c=None): ...

    for ours, complaint in (
        (lambda self, a, b, c=None: ..., None),
        (lambda self, a, b, **more: ..., None),
        (lambda self, *more: ..., None),
        (lambda self, a, b: ..., "parameter c is not taken"),
        (lambda self, b, a, c: ..., "parameter a stands elsewhere"),
        (lambda self, a, b, c, d: ..., "parameter d is asked for and never given"),
        (lambda self, a, b, c, d=1: ..., None),
    ):
        assert unacceptable(ours, theirs) == complaint


def test_no_method_waits_for_a_call_that_never_comes():
    waiting = {name for name in vars(TuttiConnectorV1) if not name.startswith("_")}
    mixed_in = public(base.SupportsHMA) if issubclass(TuttiConnectorV1, base.SupportsHMA) else set()
    assert waiting - public(base.KVConnectorBase_V1) - mixed_in - OWN == set()


def test_every_hook_of_the_base_class_was_looked_at():
    assert public(base.KVConnectorBase_V1) - set(HOOKS.split()) == set(), (
        "new in this vLLM: is it needed, may it stay?"
    )


def test_nothing_is_left_abstract():
    for ours, _ in PAIRS:
        assert not getattr(ours, "__abstractmethods__", None), ours


def names_of(cls):
    if dataclasses.is_dataclass(cls):
        return {each.name for each in dataclasses.fields(cls)} | public(cls)
    if hasattr(cls, "__struct_fields__"):
        return set(cls.__struct_fields__)
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", inspect.getsource(cls))) | public(cls)


READ = (
    (SchedulerOutput, """num_scheduled_tokens scheduled_spec_decode_tokens kv_connector_block_state
        preempted_req_ids kv_connector_metadata finished_req_ids has_sync_kv_loads"""),
    (KVConnectorBlockState, "get_block_ids"),
    (KVConnectorOutput, """finished_sending finished_recving failed_recving kv_connector_stats
        kv_connector_worker_meta invalid_block_ids"""),
    (Request, """request_id num_tokens num_computed_tokens block_hashes cache_salt lora_request
        pooling_params prompt_embeds all_token_ids skip_reading_prefix_cache mm_features resumable"""),
    (MultiModalConfig, "mm_processor_cache_gb mm_processor_kwargs media_io_kwargs"),
    (ModelConfig, "max_model_len multimodal_config"),
    (KVCacheConfig, "kv_cache_groups kv_cache_tensors kv_cache_layout num_blocks hash_block_size"),
    (KVTransferConfig, "kv_connector_extra_config kv_load_failure_policy"),
    (ParallelConfig, "tensor_parallel_size pipeline_parallel_size data_parallel_size data_parallel_index"),
    (kv_events.BlockStored, "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name"),
    (kv_events.BlockRemoved, "block_hashes medium"),
)  # fmt: skip


@pytest.mark.parametrize(("cls", "names"), READ, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_read_of_vllms_objects_is_there(cls, names):
    assert set(names.split()) - names_of(cls) == set()
