# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's own OffloadingConnector run on the CPU engine, as a peer to measure against. Test code.

vLLM's scheduler side, tiers and file-system tier are used as they are; only the worker, which on a GPU copies
with CUDA, is replaced: it copies pages between the paged cache and vLLM's own host tier with ``memmove``.
Named in ``spec_name`` and ``spec_module_path`` of the connector's settings. One KV cache group.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

__all__ = ["CpuTieringSpec"]


class _MemmoveWorker(OffloadingWorker):
    """Copies at once, in the caller's thread; everything is finished when it is asked for."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion, blocks_per_chunk: int) -> None:
        if len(kv_caches.group_data_refs) != 1:
            raise ValueError(f"one KV cache group is supported, not {len(kv_caches.group_data_refs)}")
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._finished: list[TransferResult] = []
        sizes = [tensor.page_size_bytes for tensor in kv_caches.tensors]
        views = [region.create_next_worker_view(size * blocks_per_chunk) for size in sizes]
        # For each layer: where its pages lie, where chunks have its part, bytes from one to the next.
        self._layers = [
            (
                kv_caches.tensors[ref.tensor_idx].tensor.data_ptr(),
                sizes[ref.tensor_idx],
                views[ref.tensor_idx].data_ptr(),
                views[ref.tensor_idx].stride(0),
                ref.page_size_bytes,
            )
            for ref in kv_caches.group_data_refs[0]
        ]

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def _copy(self, job_id: int, pages: Any, chunks: Any, *, to_host: bool) -> bool:
        begin = time.perf_counter()
        first = pages.block_indices[0] % self._blocks_per_chunk
        places = [divmod(first + n, self._blocks_per_chunk) for n in range(len(pages.block_ids))]
        size = 0
        for pages_at, page_step, chunks_at, chunk_step, page_bytes in self._layers:
            for block, (chunk, part) in zip(pages.block_ids.tolist(), places):
                page = pages_at + block * page_step
                copy = chunks_at + int(chunks.block_ids[chunk]) * chunk_step + part * page_step
                ctypes.memmove(*((copy, page) if to_host else (page, copy)), page_bytes)
                size += page_bytes
        self._finished.append(TransferResult(job_id, True, size, time.perf_counter() - begin))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        return

    def shutdown(self) -> None:
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    """vLLM's tiers with the worker above."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = _MemmoveWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
