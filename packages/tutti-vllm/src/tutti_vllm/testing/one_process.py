# SPDX-License-Identifier: Apache-2.0
"""vLLM with scheduler and worker in this process, where a test can look into both."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ErrorLog", "OneProcessEngine", "prepare_process"]

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Several such processes share the machine; the model is too small to gain from threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare_process() -> None:
    """Set what vLLM reads from the environment; call it before vLLM is imported."""
    os.environ.update(_ENVIRONMENT)


class OneProcessEngine:
    """An engine that is stepped by hand.

    Args:
        model: folder of the model.
        connector: class, module and settings of the connector as ``kv_transfer_config`` wants them; None for
            vLLM alone.
        overlapped: whether each step is planned before the one before it has ended, as on GPUs.
        options: further arguments of ``vllm.EngineArgs``.
    """

    def __init__(
        self,
        model: Path,
        connector: dict[str, Any] | None = None,
        *,
        overlapped: bool = False,
        **options: Any,
    ) -> None:
        from vllm import EngineArgs
        from vllm.config import KVTransferConfig
        from vllm.v1.engine.llm_engine import LLMEngine

        # What vLLM has imported so far stays out of the many collections that ending an engine asks for.
        gc.freeze()
        arguments: dict[str, Any] = {
            "model": str(model),
            "dtype": "float32",
            "block_size": 32,
            "max_model_len": 512,
            "enforce_eager": True,
            "disable_log_stats": True,
            "skip_tokenizer_init": True,
        }
        if connector is not None:
            transfer = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"} | connector
            arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
        config = EngineArgs(**(arguments | options)).create_engine_config()
        # vLLM sees no use for it on a CPU and switches it off, but its engine runs it there.
        config.scheduler_config.async_scheduling = overlapped
        self.engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        self.core: Any = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.connector = self.scheduler.connector

    def ask(self, name: str, tokens: Sequence[int], max_tokens: int, **sampling: Any) -> None:
        """Add a request for a greedy answer."""
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, **sampling
        )
        self.engine.add_request(name, {"prompt_token_ids": list(tokens)}, parameters)

    def step(self) -> Iterator[Any]:
        """Run one step; yield what has finished."""
        outputs = self.engine.step()
        if not outputs:
            # Nothing ran: whoever does the I/O needs the processor more than the next look.
            time.sleep(0.0005)
        yield from (output for output in outputs if output.finished)

    def settle(self, seconds: float = 60.0) -> None:
        """Step the idle engine until it says that nothing is left, as vLLM's own loop does.

        Raises TimeoutError if it never does.
        """
        deadline = time.monotonic() + seconds
        while self.scheduler.has_requests():
            self.core.step_fn()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine has work left after {seconds:.0f} s without requests")

    def in_use(self) -> dict[str, int]:
        """Return what vLLM and both sides of the connector still hold, by name; empty when idle."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        pool = self.scheduler.kv_cache_manager.block_pool
        # Block 0 is never handed out.
        held = {
            "vllm_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "vllm_requests": len(self.scheduler.requests),
        }
        if self.connector is not None:
            held |= self.connector.in_use() | get_kv_transfer_group().in_use()
        return {name: count for name, count in held.items() if count}

    def become_idle(self, seconds: float = 10.0) -> dict[str, int]:
        """Settle and wait for late I/O to end; return what is held nevertheless."""
        self.settle()
        deadline = time.monotonic() + seconds
        while (held := self.in_use()) and time.monotonic() < deadline:
            # An idle engine takes no step; late writes are told with the next one, whenever it comes.
            self.ask("idle", [3], 1)
            while self.engine.has_unfinished_requests():
                list(self.step())
            self.settle()
            time.sleep(0.005)
        return held

    def close(self) -> None:
        """End the engine."""
        self.core.shutdown()
        del self.engine, self.core, self.scheduler, self.connector
        gc.collect()


class ErrorLog(logging.Handler):
    """Collects what the connector logs as an error: an exception that was kept from vLLM is a defect too."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        for name in ("tutti_engine", "tutti_vllm"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message, with the last line of its traceback."""
        error = record.exc_info[1] if record.exc_info else None
        self.messages.append(record.getMessage() + (f" ({error!r})" if error else ""))

    def take(self) -> list[str]:
        """Return the messages since the last call."""
        messages, self.messages = self.messages, []
        return messages
