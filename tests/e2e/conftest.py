# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine on a tiny model, with and without the connector."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.engine_process import EngineProcess, EngineSpec
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

# Scheduler and worker share this process here, which makes an engine start in seconds; the tests of restarts
# run engines as vLLM does by itself, in processes of their own.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

MODEL = TinyModel(
    layers=8, hidden=256, heads=4, kv_heads=2, intermediate=512, vocabulary=1024, max_tokens=4096
)
BLOCKS_PER_CHUNK = 2
CHUNK_TOKENS = 64
CHUNK_BYTES = MODEL.layers * BLOCKS_PER_CHUNK * 32 * 2 * MODEL.kv_heads * MODEL.head_size * 4
OPTIONS = {"max_model_len": 2048, "num_gpu_blocks_override": 128}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if "e2e" in Path(str(item.fspath)).parts:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))


def prompt(seed: int, length: int, *, shared: Sequence[int] = ()) -> list[int]:
    """Return ``length`` random tokens that begin with ``shared``."""
    source = random.Random(seed)
    return [*shared, *(source.randrange(3, MODEL.vocabulary) for _ in range(length - len(shared)))]


class Engine:
    """One vLLM engine in this process."""

    def __init__(self, model: Path, connector: dict[str, Any] | None, options: dict[str, Any]) -> None:
        from vllm import LLM

        # Engines that ended are gone by now: what is left stays out of the collections of the next one's end.
        gc.freeze()
        self._began: dict[str, int] = {}
        self.llm = LLM(**EngineSpec(str(model), connector, OPTIONS | options).arguments())

    @property
    def _core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    def answer(self, *prompts: list[int], max_tokens: int = 8) -> list[list[int]]:
        """Return the greedy answers; all prompts are given at once."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        self.settle()
        return [list(output.outputs[0].token_ids) for output in outputs]

    def settle(self) -> None:
        """Step the idle engine until it says that nothing is left, as vLLM's own loop does."""
        while self._core.scheduler.has_requests():
            self._core.step_fn()

    def counters(self) -> dict[str, int]:
        """Return the connector's counters."""
        return self._core.scheduler.connector.counters()

    def in_use(self) -> dict[str, int]:
        """Return what is held on both sides of the connector; empty when idle."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return self._core.scheduler.connector.in_use() | get_kv_transfer_group().in_use()

    def moved(self, before: dict[str, int]) -> dict[str, int]:
        """Return how far the counters moved."""
        return {name: value - before.get(name, 0) for name, value in self.counters().items()}

    def transferred(self, before: dict[str, int] | None = None) -> tuple[int, int]:
        """Return how many chunks were loaded and stored, as the bytes read and written prove.

        By default since the engine, or a test on it, began.
        """
        moved = self.moved(self._began if before is None else before)
        loaded, stored = moved.get("load_chunks", 0), moved.get("store_chunks", 0)
        assert moved.get("read_bytes", 0) == loaded * CHUNK_BYTES
        assert moved.get("written_bytes", 0) == stored * CHUNK_BYTES
        return loaded, stored

    @property
    def kv_cache_config(self) -> Any:
        """How vLLM laid out its KV cache."""
        return self._core.scheduler.kv_cache_config

    def watch_blocks(self) -> dict[str, list[int]]:
        """Return a dictionary that will have the block table of every request, of the first cache group."""
        scheduler, tables = self._core.scheduler, {}
        step = scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = step(*args, **kwargs)
            for request_id in scheduler.requests:
                tables[request_id] = list(scheduler.kv_cache_manager.get_block_ids(request_id)[0])
            return output

        scheduler.schedule = schedule
        return tables

    def pages(self, layers: Sequence[str], block_ids: Sequence[int]) -> dict[str, bytes]:
        """Return the bytes of some blocks, layer by layer."""
        import torch

        context = self._core.vllm_config.compilation_config.static_forward_context
        caches = {name: context[name].kv_cache for name in layers}
        return {
            name: torch.stack([cache[block].contiguous() for block in block_ids])
            .view(torch.uint8)
            .numpy()
            .tobytes()
            for name, cache in caches.items()
        }

    def forget_memory(self, *, disk: bool = False) -> None:
        """Empty vLLM's own prefix cache, and the connector's if asked to."""
        assert self.llm.reset_prefix_cache(reset_connector=disk)

    def begin(self) -> None:
        """Forget everything for a test that shares the engine with others."""
        self.forget_memory(disk=True)
        self._began = self.counters()

    def close(self) -> None:
        """End the engine, once.

        By its client, which else ends the engine again when it is collected: by then another one may be
        running in this process, whose process groups would go.
        """
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


@pytest.fixture(scope="session")
def vllm_loaded() -> None:
    """Import vLLM once and leave its objects out of the many collections that ending an engine asks for."""
    from vllm import LLM

    assert LLM
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), MODEL)


@pytest.fixture(scope="session")
def reference(model: Path) -> Iterator[Callable[..., list[list[int]]]]:
    """The answers of vLLM alone, each prompt by itself, without a prefix cache, in a process of its own."""
    known: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    spec = EngineSpec(str(model), options=OPTIONS | {"enable_prefix_caching": False})
    with EngineProcess(spec, one_process=True) as engine:

        def answers(*prompts: list[int], max_tokens: int = 8) -> list[list[int]]:
            for one in prompts:
                key = max_tokens, tuple(one)
                if key not in known:
                    known[key] = engine.answer(one, max_tokens).tokens
            return [known[max_tokens, tuple(one)] for one in prompts]

        yield answers


def settings_of(root: Path, capacity_bytes: int = 64 << 20) -> dict[str, Any]:
    """Return the connector's settings that tests use."""
    return {
        "capacity_bytes": capacity_bytes,
        "root": str(root),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
        # Tests that count what was loaded must not depend on what took how long.
        "break_even": False,
    }


@pytest.fixture(scope="class")
def one_engine(model: Path, tmp_path_factory: pytest.TempPathFactory, vllm_loaded: None) -> Iterator[Engine]:
    """One engine for the tests of a class, which start no other."""
    # Of several loads and prefills ``auto`` would learn, and what a test counts depend on those before it.
    settings = settings_of(tmp_path_factory.mktemp("shared") / "cache") | {"load_mode": "async"}
    engine = Engine(model, settings, {})
    yield engine
    engine.close()


@pytest.fixture
def engine(one_engine: Engine) -> Engine:
    """The engine of the class, with nothing stored."""
    one_engine.begin()
    return one_engine


@pytest.fixture
def start(model: Path, tmp_path: Path, vllm_loaded: None) -> Iterator[Callable[..., Engine]]:
    """Start engines with the connector on a store of the test's own; they are closed at its end."""
    running: list[Engine] = []

    def make(
        root: Path | None = None,
        capacity_bytes: int = 64 << 20,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> Engine:
        for engine in running:
            engine.close()
        running.clear()
        connector = settings_of(root or tmp_path / "cache", capacity_bytes) | (settings or {})
        running.append(Engine(model, connector, options))
        return running[-1]

    yield make
    for engine in running:
        engine.close()
