# SPDX-License-Identifier: Apache-2.0
"""Which worker holds which part of a request's KV, and which of them stores it.

A worker has a number in the engine: workers of a pipeline stage come together, in the order of their tensor
ranks. A part is what one worker of each replica group stores. Data-parallel engines have stores of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tutti_vllm.start.unsupported import UnsupportedError

__all__ = ["Topology", "has_draft_model", "read_topology"]

_WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways to draft tokens that have no KV of their own."""


@dataclass(frozen=True, slots=True)
class Topology:
    """How one engine's workers share a model.

    Attributes:
        tensor_ranks: tensor-parallel ranks of each pipeline stage.
        stages: hidden layers of each pipeline stage; one entry, whatever it says, without pipelining.
        replicas: consecutive tensor ranks that hold the same KV: all of them with MLA, several where there
            are fewer KV heads than ranks.
    """

    tensor_ranks: int = 1
    stages: tuple[int, ...] = (1,)
    replicas: int = 1

    @property
    def workers(self) -> int:
        """How many workers there are; all of them load."""
        return self.tensor_ranks * len(self.stages)

    @property
    def parts(self) -> int:
        """How many parts a chunk is stored in, each by one worker."""
        return self.workers // self.replicas

    def worker(self, tensor_rank: int, stage: int) -> int:
        """Return a worker's number."""
        return stage * self.tensor_ranks + tensor_rank

    def part(self, worker: int) -> int:
        """Return the number of the part that a worker loads. Replica groups never span stages."""
        return worker // self.replicas

    def stores(self, worker: int) -> bool:
        """Return whether a worker stores its part; the others of its group hold the same bytes."""
        return worker % self.replicas == 0

    def most_layers(self, first_stage: int) -> int:
        """Return how many layers with KV a stage has at most.

        Args:
            first_stage: layers with KV in the first stage, the only ones that vLLM's scheduler is told of.
        """
        if len(self.stages) == 1:
            return first_stage
        per_hidden_layer = -(-first_stage // max(1, self.stages[0]))
        return max(1, per_hidden_layer) * max(self.stages)


def read_topology(vllm_config: Any, kv_cache_config: Any) -> Topology:
    """Return an engine's topology. Raises UnsupportedError for what shards tokens instead of layers or heads.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: the resolved KV cache; knows which ranks hold copies.
    """
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size != 1:
            raise UnsupportedError(f"{name} is {size}; Tutti supports 1 at present")
    ranks = parallel.tensor_parallel_size
    replicas = getattr(kv_cache_config, "kv_tp_replicas", 1)
    if replicas == 1 and ranks > 1:
        replicas = _copied_heads(vllm_config, kv_cache_config, ranks)
    if ranks % replicas:
        raise UnsupportedError(f"{ranks} tensor-parallel ranks are no whole number of groups of {replicas}")
    return Topology(ranks, _stages(vllm_config), replicas)


def _copied_heads(vllm_config: Any, kv_cache_config: Any, ranks: int) -> int:
    """Return how many consecutive ranks hold the same KV because there are fewer heads than ranks.

    vLLM tells that only of latents. Here it is taken as true only where all layers are alike and the model
    has one number of KV heads: a rank that held other heads would load wrong ones.
    """
    model = vllm_config.model_config
    total = getattr(model, "get_total_num_kv_heads", lambda: ranks)()
    groups = kv_cache_config.kv_cache_groups
    if total >= ranks or ranks % total or len(groups) != 1 or has_draft_model(vllm_config):
        return 1
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec" or spec.num_kv_heads != 1:
        return 1
    config = getattr(model, "hf_text_config", model.hf_config).to_dict()
    numbers = [name for name in config if "kv_heads" in name or "key_value_heads" in name]
    return ranks // total if numbers == ["num_key_value_heads"] else 1


def has_draft_model(vllm_config: Any) -> bool:
    """Return whether tokens are drafted by layers that have KV of their own."""
    method = getattr(getattr(vllm_config, "speculative_config", None), "method", None)
    return method is not None and method not in _WITHOUT_LAYERS


def _stages(vllm_config: Any) -> tuple[int, ...]:
    size = vllm_config.parallel_config.pipeline_parallel_size
    if size == 1:
        return (1,)
    if has_draft_model(vllm_config):
        method = vllm_config.speculative_config.method
        # Its layers are in the last stage, and vLLM tells the scheduler of the first one's only.
        raise UnsupportedError(
            f"speculative decoding with {method!r} and {size} pipeline stages: use one of them, or draft"
            f" without a model ({', '.join(sorted(_WITHOUT_LAYERS))})"
        )
    from vllm.distributed.utils import get_pp_indices

    total = vllm_config.model_config.get_total_num_hidden_layers()
    bounds = [get_pp_indices(total, stage, size) for stage in range(size)]
    return tuple(end - start for start, end in bounds)
