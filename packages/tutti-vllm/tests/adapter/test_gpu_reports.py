# SPDX-License-Identifier: Apache-2.0
"""Overlap and milestones are worked out rightly from what a run leaves. No GPU, and no engine, is needed."""

import gzip
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "serving_gpu"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of the installed package", allow_module_level=True)

MODULES = ("overlap", "phases", "costs", "cost_bench", "cost_table", "goals", "fleet", "systems", "engines")
MODULES += ("engine_step",)

BASE = 1_700_000_000_000_000
"""Microseconds of the epoch at which the trace's clock has its zero."""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if not entry.endswith("serving_cpu")]


def kernel(name, ts, dur, cat="kernel", **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def read(name, start, spent, thread="tutti-read"):
    return [name, thread, BASE + start, spent]


def traced(*events):
    return {"baseTimeNanoseconds": BASE * 1000, "traceEvents": list(events)}


def test_intervals(load):
    overlap = load("overlap")
    assert overlap.union([(5, 7), (1, 3), (2, 4), (4, 5), (9, 9)]) == [(1, 7)]
    assert overlap.common([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 20)]) == [(1, 2), (3, 4), (6, 7), (8, 9)]
    assert overlap.common([(0, 1)], [(1, 2)]) == [] and overlap.common([], [(1, 2)]) == []


def test_a_load_behind_computation_is_hidden_and_one_beside_it_is_not(load):
    trace = traced(
        kernel("gemm", 0, 1000),
        kernel("void tutti::kv::page_kernel<1>", 500, 300),
        kernel("gemm", 2000, 1000),
        kernel("Memcpy HtoD (Pinned -> Device)", 2900, 5, "gpu_memcpy", bytes=64),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9000},
    )
    # Read from 200 to 600, all of it hidden, and from 900 to 1300, a quarter of it.
    spans = [
        read("submit reads", 200, 10),
        read("submit reads", 900, 10),
        read("wait for reads", 300, 300),
        read("wait for reads", 950, 350),
    ]
    found = load("overlap").report(trace, [{"spans": spans}])
    assert found["total ms"] == 3.0 and found["computing ms"] == 2.0
    assert found["copies to pages ms"] == pytest.approx(0.3)
    # 200 to 800 and 900 to 1300.
    assert found["load ms"] == pytest.approx(1.0)
    assert found["share of the load that is hidden"] == pytest.approx(0.7)
    assert found["share of the reads that is hidden"] == pytest.approx(500 / 800)
    assert found["GPU idle share"] == pytest.approx(1 / 3)
    assert found["total / longer"] == pytest.approx(1.5)


def test_copies_by_the_copy_engines_count_as_loads(load):
    trace = traced(
        kernel("gemm", 0, 100), kernel("Memcpy HtoD (Pinned -> Device)", 100, 100, "gpu_memcpy", bytes=65536)
    )
    found = load("overlap").report(trace, [])
    assert found["copies to pages ms"] == 0.1 and found["share of the load that is hidden"] == 0


def test_files_that_do_not_belong_together_are_refused(load):
    overlap = load("overlap")
    with pytest.raises(ValueError, match="one clock"):
        overlap.report(
            traced(kernel("gemm", 0, 10)),
            [{"spans": [read("submit reads", 50, 1), read("wait for reads", 60, 1)]}],
        )
    with pytest.raises(ValueError, match="no kernels"):
        overlap.report(traced(), [])


def test_the_program_reads_packed_traces(load, monkeypatch, tmp_path, capsys):
    trace, watch = tmp_path / "t.json.gz", tmp_path / "w.jsonl"
    trace.write_bytes(gzip.compress(json.dumps(traced(kernel("gemm", 0, 1000))).encode()))
    line = {"spans": [read("submit reads", 0, 10), read("wait for reads", 100, 400)]}
    watch.write_text(json.dumps(line) + "\n")
    monkeypatch.setattr(sys, "argv", ["overlap", str(trace), str(watch)])
    assert load("overlap").main() == 0
    assert "share of the load that is hidden: 1.000" in capsys.readouterr().out


def test_milestones_follow_a_request_from_its_arrival(load):
    phases = load("phases")
    line = {
        "events": {"arrived": BASE, "load planned": BASE + 1000, "computing": BASE + 9000},
        "spans": [
            read("submit reads", 2000, 100),
            read("wait for reads", 2500, 1500),
            read("wait for scatter", 4000, 1000),
        ],
        "calls": {"build_connector_meta": [4, 40.0], "take_events": [4, 4.0]},
    }
    assert phases.milestones(line) == {
        "load planned": 1.0,
        "first read": 2.0,
        "last read": 4.0,
        "last copy": 5.0,
        "computing": 9.0,
    }
    later = line | {"calls": {"build_connector_meta": [10, 160.0], "take_events": [4, 4.0]}}
    assert phases.callbacks([line, later], 1) == {"build_connector_meta": (6, 20.0)}
    printed = phases.table([line, later])
    assert "all callbacks: 16.4 us a step, 10 steps" in printed and "last copy 5.0" in printed


def test_costs_show_medians_and_whom_they_are_of(load):
    costs = load("costs")
    found = {
        "token": {"nothing to store": {"alone": [0.004, 0.006, 0.005], "nothing": [0.0055]}},
        "loads": {
            "100": {"tutti": [{"milestones": {"last copy": 5.0}, "spans": {"submit reads": (2, 0.5, 1.0)}}]}
        },
        "failed": {"host": "it ended"},
    }
    printed = costs.table(found)
    assert "| alone | 5.00 |" in printed and "| nothing | 5.50 |" in printed
    assert "- tutti: last copy 5.0" in printed and "submit reads 2 x 0.50 = 1.0" in printed
    assert "host ended: it ended" in printed
    assert costs.in_turn(["a", "b", "c"], 4) == ["b", "c", "a"] and costs.in_turn([], 4) == []


def test_goals_are_ratios_of_turns(load):
    goals = load("goals")
    found = {
        "stored": {
            "1000": {"tutti": [0.030, 0.032], "computed": [0.034, 0.034]},
            "64000": {
                "tutti": [0.5, 0.4, 0.9],
                "computed": [2.0, 2.0, 2.0],
                "host": [0.25, 0.2, 0.2],
                "fs": [3.0],
            },
        },
        "new": {"1000 after a pause": {"tutti": [0.0340, 0.0341], "alone": [0.0340, 0.0340]}},
        "token": {"nothing to store": {"tutti": [0.0052], "alone": [0.0050]}},
        "overlap": {"50 % stored": {"tutti layer-wise": {"total / longer": 1.05}, "tutti": "no trace"}},
    }
    rows = "\n".join(goals.goals(found))
    assert "| stored, of computing it, 1000 | 0.912 | 1.02 | reached | 0.882 to 0.941, 2 turns |" in rows
    assert (
        "| stored, of vLLM's host memory, 64000 | 2.000 | 1.25 | MISSED | 2.000 to 4.500, 3 turns |" in rows
    )
    assert (
        "| stored, of vLLM's file-system tier, 64000 | 0.167 | 0.125 | MISSED | 0.167 to 0.167, 1 t" in rows
    )
    assert "| stored, of computing it, long, 64000 | 0.250 | 0.2 | MISSED |" in rows
    assert "of vLLM alone, 1000 after a pause | 1.001 | 1.01 | reached |" in rows
    assert "of vLLM alone, nothing to store | 1.040 | 1.01 | MISSED |" in rows
    assert "load and computation, 50 % stored | 1.050 | 1.1 | reached |" in rows
    assert "host memory, 1000" not in rows and goals.goals({}) == []


class Engine:
    """Answers at once and, where it is watched, writes down a load; its traces are those of a GPU."""

    started: list[tuple[str, dict]] = []
    asked: list[tuple[str, tuple[int, ...]]] = []
    dies = ""

    def __init__(self, model, connector, *, environment, **options):
        self.name = "alone" if connector is None else connector["kv_connector"]
        self.extra = {} if connector is None else connector.get("kv_connector_extra_config", {})
        self.watch = environment.get("TUTTI_WATCH")
        self.options, self.steps, self.traced = options, 0, False
        Engine.started.append((self.name, environment | self.extra))

    def ask(self, prompts, max_tokens, *, at_once, timeout):
        from engines import Answers

        assert all(len(prompt) + max_tokens < self.options["max_model_len"] for prompt in prompts)
        if Engine.dies and self.name == Engine.dies:
            raise RuntimeError("the engine ended with code 1")
        Engine.asked += [(self.name, tuple(prompt)) for prompt in prompts]
        self.steps += max_tokens
        for _ in prompts if self.watch else ():
            line = {
                "events": {"arrived": BASE, "load planned": BASE + 1000, "computing": BASE + 9000},
                "spans": [read("submit reads", 0, 10), read("wait for reads", 100, 400)],
                "calls": {"build_connector_meta": [self.steps, 5.0 * self.steps]},
            }
            with open(self.watch, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.traced:
            folder = Path(self.options["profiler_config"]["torch_profiler_dir"])
            folder.mkdir(exist_ok=True)
            (folder / "rank0.json").write_text(json.dumps(traced(kernel("gemm", 0, 1000))))
        count = len(prompts)
        return Answers(0.5, [0.1] * count, [len(each) for each in prompts], [[1]] * count, [0.01] * count)

    def said(self):
        return ["INFO Tutti: loads on cuda:0 go by kernel (asked for)."]

    def forget(self):
        pass

    def profile(self, *, begin):
        self.traced = begin

    def begin_close(self):
        pass

    def close(self):
        pass


@pytest.fixture
def costs(load, monkeypatch, tmp_path):
    """The program, with engines that answer at once."""
    module = load("costs")
    engines = sys.modules["engines"]
    Engine.started, Engine.asked, Engine.dies = [], [], ""
    monkeypatch.setattr(engines, "EngineProcess", Engine)
    monkeypatch.setattr(engines, "wait_for_quiet", lambda folder: None)
    (tmp_path / "drive").mkdir()
    arguments = [
        "--folder",
        str(tmp_path),
        "--drive",
        str(tmp_path / "drive"),
        "--json",
        str(tmp_path / "costs.json"),
        "--turns",
        "2",
    ]
    lengths = ["--lengths", "300", "900", "--new-lengths", "100", "200", "--pause", "0", "--new-turns", "1"]
    monkeypatch.setattr(sys, "argv", ["costs", *arguments, *lengths])
    return module


def test_all_parts_ask_all_variants_and_tell_what_came_of_it(costs, monkeypatch, tmp_path, capsys):
    assert costs.main() == 0
    found = json.loads((tmp_path / "costs.json").read_text())
    unchanged = [name for name, (_, knobs) in costs.NEW.items() if not knobs]
    assert list(found["token"]["nothing to store"]) == unchanged
    assert found["token"]["a prompt being stored"].keys() == costs.NEW.keys() - {
        "nothing",
        "tutti, no stores",
    }
    assert set(found["new"]) == {"100 behind another", "100 after a pause", "200 after a pause"}
    assert set(found["stored"]["300"]) == set(costs.USUAL)
    # Those with room for shorter prompts only are not asked for the longest.
    assert set(found["stored"]["900"]) == set(costs.USUAL) - {"tutti, 8 threads"}
    loaded = {name for name in costs.USUAL if name.startswith("tutti")}
    assert set(found["loads"]["300"]) == loaded
    assert len(found["stored"]["900"]["fs"]) == 1 and len(found["stored"]["900"]["host"]) == 2
    assert found["layers"]["50 % stored"].keys() == {"tutti layer-wise", "tutti"}
    reports = found["overlap"]["75 % stored"].values()
    assert [each["share of the load that is hidden"] for each in reports] == [1.0, 1.0]
    assert found["calls"].keys() == {"nothing", "tutti, no stores", "tutti"}
    printed = capsys.readouterr().out
    assert "tutti said: INFO Tutti: loads on cuda:0 go by kernel" in printed
    assert "hits, tutti: 300 of 300, 900 of 900" in printed
    assert "callbacks, nothing: 5.0 us a step" in printed and "last read 0.5" in printed
    stored = [facts for name, facts in Engine.started if name == "WatchedTutti" and facts["read_only"]]
    assert [facts.get("TUTTI_THREADS") for facts in stored] == [None, "8", None, None]
    assert [facts["load_mode"] for facts in stored[-2:]] == ["layerwise", "async"]
    assert "| stored, of computing it, 900 | 1.000 | 1.02 | reached |" in printed
    assert found["drive"] == {"300": {"drive": [0.1, 0.1], "alone": [0.1, 0.1]}}
    assert "| stored on a drive, of computing it, 300 | 1.000 | 1.02 | reached |" in printed
    roots = {Path(facts["root"]) for _, facts in Engine.started if "root" in facts}
    assert {root.name for root in roots} == {"tutti", "tutti, no stores", "drive"}
    assert {root.parent.parent for root in roots if root.name == "drive"} == {tmp_path / "drive"}


def test_no_stored_prompt_begins_as_another_one(costs):
    """Else vLLM holds the beginning of the longer one when it is asked for, and less is loaded."""
    assert costs.main() == 0
    stored = {prompt for name, prompt in Engine.asked if len(prompt) == 900 and name == "WatchedTutti"}
    shorter = {prompt for name, prompt in Engine.asked if len(prompt) < 900}
    assert stored and not any(long[: len(short)] == short for long in stored for short in shorter)


@pytest.mark.parametrize("what", ["an engine", "a part", "an interruption"])
def test_what_fails_costs_only_itself(costs, monkeypatch, tmp_path, capsys, what):
    def fail(bench, *arguments):
        raise KeyboardInterrupt if what == "an interruption" else ValueError("no such luck")

    if what == "an engine":
        Engine.dies = "OffloadingConnector"
    else:
        monkeypatch.setattr(costs, "_ask_for_stored", fail)
    assert costs.main() == 1
    found = json.loads((tmp_path / "costs.json").read_text())
    printed = capsys.readouterr().out
    assert "| tutti | " in printed and found["new"]["200 after a pause"]["tutti"]
    assert ("overlap" in found) is (what != "an interruption")
    ended = {"an engine": "host", "a part": "stored", "an interruption": "costs"}[what]
    assert f"{ended} ended: " in printed and ended in found["failed"]


def test_the_cost_of_steps_is_told_for_each_connector(load, monkeypatch, tmp_path, capsys):
    load("overlap")
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    step = importlib.import_module("engine_step")
    asked = []

    def run(command, **options):
        kind = command[command.index("--only") + 1]
        asked.append(kind)
        found = {"vLLM schedule": 100.0} | ({} if kind == "alone" else {"S take_events": 1.0 + len(asked)})
        return SimpleNamespace(stdout=f"noise\nfound {json.dumps(found)}\n", stderr="", returncode=0)

    monkeypatch.setattr(step.subprocess, "run", run)
    out = tmp_path / "step.json"
    monkeypatch.setattr(sys, "argv", ["engine_step", "--turns", "3", "--json", str(out)])
    step.main()
    assert asked == ["alone", "nothing", "tutti"] * 3
    printed = capsys.readouterr().out
    assert "alone: callbacks 0.0 us a step" in printed and "tutti: callbacks 7.0 us a step" in printed
    assert len(json.loads(out.read_text())["nothing"]) == 3
    monkeypatch.setattr(
        step.subprocess, "run", lambda *a, **k: SimpleNamespace(stdout="", stderr="no engine", returncode=3)
    )
    with pytest.raises(SystemExit, match="alone ended with code 3"):
        step.main()
