# SPDX-License-Identifier: Apache-2.0
"""The serving benchmarks measure what they say: copies of the peer's shim, turns, tables. No engine runs."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "serving_cpu"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of the installed package", allow_module_level=True)


@pytest.fixture
def load(monkeypatch):
    """Import one of the benchmarks' modules as their own folder sees it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("engines", "no_hits", "after_restart", "cpu_tiering_spec"):
        sys.modules.pop(name, None)


class Region:
    """One row a chunk; each layer's part after the other."""

    def __init__(self, chunks, row_bytes):
        self.memory = torch.zeros(chunks, row_bytes, dtype=torch.int8)
        self._next = 0

    def create_next_worker_view(self, size):
        self._next += size
        return self.memory[:, self._next - size : self._next]


def blocks(ids, first=0):
    return SimpleNamespace(block_ids=torch.tensor(ids).numpy(), block_indices=[first])


@pytest.mark.parametrize("first", [0, 1])
def test_the_peers_shim_copies_pages_to_chunks_and_back(load, first):
    spec = load("cpu_tiering_spec")
    page, per_chunk = 8, 2
    pages = [torch.randint(-128, 127, (10, page), dtype=torch.int8) for _ in range(3)]
    before = [layer.clone() for layer in pages]
    refs = [SimpleNamespace(tensor_idx=n, page_size_bytes=page) for n in range(3)]
    tensors = [SimpleNamespace(tensor=layer, page_size_bytes=page) for layer in pages]
    region = Region(4, 3 * page * per_chunk)
    worker = spec._MemmoveWorker(SimpleNamespace(tensors=tensors, group_data_refs=[refs]), region, per_chunk)
    # Three blocks from an even or an odd place on: two chunks.
    assert worker.submit_store(1, blocks([7, 2, 5], first), blocks([3, 1]))
    for layer in pages:
        layer[:] = 0
    assert worker.submit_load(2, blocks([3, 1]), blocks([0, 9, 4], first))
    for layer, old in zip(pages, before, strict=True):
        assert torch.equal(layer[[0, 9, 4]], old[[7, 2, 5]])
        assert not layer[[1, 2, 3, 5, 6, 7, 8]].any()
    finished = worker.get_finished()
    assert [(each.job_id, each.success, each.transfer_size) for each in finished] == [
        (1, True, 9 * page),
        (2, True, 9 * page),
    ]
    assert worker.get_finished() == []


class Engine:
    """Says how it was started; with a connector it is twice as fast after the first time."""

    started: list[object] = []

    def __init__(self, model, connector, **options):
        self.name = None if connector is None else connector["kv_connector"]
        self.connector = connector
        self.first = self.name not in Engine.started
        Engine.started.append(self.name)

    def ask(self, prompts, max_tokens, *, at_once):
        from engines import Answers

        warm = self.name is not None and not self.first
        if self.name == "TuttiConnectorV1":
            store = Path(self.connector["kv_connector_extra_config"]["root"]) / "store"
            store.mkdir(parents=True, exist_ok=True)
            (store / "namespace.json").write_text("{}")
        seconds = 0.5 if warm else 1.0
        return Answers(
            seconds=seconds,
            first_token_seconds=[seconds] * len(prompts),
            hit_tokens=[896 if warm and len(prompt) > 512 else 0 for prompt in prompts],
            tokens=[[prompt[0]] * max_tokens for prompt in prompts],
        )

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


@pytest.fixture
def engines(load, monkeypatch):
    module = load("engines")
    Engine.started = []
    monkeypatch.setattr(module, "EngineProcess", Engine)
    monkeypatch.setattr(module, "wait_for_quiet", lambda folder: None)
    return module


def test_after_restart_lets_every_system_start_first(load, engines, monkeypatch, tmp_path, capsys):
    module = load("after_restart")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "after_restart",
            *("--prompts", "2", "--prompt", "1024", "--folder", str(tmp_path)),
            *("--json", str(tmp_path / "result.json")),
        ],
    )
    assert module.main() == 0
    alone, peer, own = None, "OffloadingConnector", "TuttiConnectorV1"
    assert Engine.started == [peer, own, alone, peer, own, peer, own, alone, own, alone, peer]
    printed = capsys.readouterr().out
    assert "| Tutti | 896 | 500 ms | 500 ms |" in printed
    assert "| recomputing | 0 | 1,000 ms | 1,000 ms |" in printed
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["identical_tokens"] and result["stored_tokens"] == 896


def test_no_hits_compares_engines_that_run_side_by_side(load, engines, monkeypatch, tmp_path, capsys):
    module = load("no_hits")
    monkeypatch.setattr("tutti_engine.catalogue.catalogue.read_counters", lambda store: {"store_chunks": 1})
    monkeypatch.setattr(
        sys, "argv", ["no_hits", "--rounds", "2", "--prompt", "64", "--folder", str(tmp_path)]
    )
    assert module.main() == 0
    assert Engine.started == [None, "TuttiConnectorV1"]
    assert "100.0% |" in capsys.readouterr().out
