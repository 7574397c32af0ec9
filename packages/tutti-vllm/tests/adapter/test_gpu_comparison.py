# SPDX-License-Identifier: Apache-2.0
"""The comparison on a GPU asks all systems in turns and says truly what came of it. No engine runs."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of the installed package", allow_module_level=True)

MODULES = ("engines", "systems", "fleet", "report", "parts", "compare", "families")


@pytest.fixture
def compare(monkeypatch):
    """The program, with engines that answer at once."""
    monkeypatch.syspath_prepend(str(FOLDER / "serving_gpu"))
    module = importlib.import_module("compare")
    engines = sys.modules["engines"]
    Engine.asked, Engine.dies, Engine.lies = [], None, False
    monkeypatch.setattr(engines, "EngineProcess", Engine)
    monkeypatch.setattr(engines, "wait_for_quiet", lambda folder: None)
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(FOLDER / "serving_cpu")]


class Engine:
    """With Tutti it is twice as fast when it is the second one on its store."""

    asked: list[tuple[str, int]] = []
    dies: str | None = None
    lies = False

    def __init__(self, model, connector, **options):
        extra = {} if connector is None else connector["kv_connector_extra_config"]
        self.name = "alone"
        if connector is not None:
            self.name = "tutti" if connector["kv_connector"] == "TuttiConnectorV1" else "host"
        self.name = "fs" if "secondary_tiers" in extra else self.name
        self.mark = Path(extra["root"]) / "used" if self.name == "tutti" else None
        self.warm = self.mark is not None and self.mark.exists()

    def ask(self, prompts, max_tokens, *, at_once, timeout):
        from engines import Answers

        Engine.asked.append((self.name, len(prompts[0])))
        if self.name == Engine.dies:
            raise RuntimeError("the engine ended with code 1")
        if self.mark is not None:
            self.mark.touch()
        seconds = 0.5 if self.warm else 1.0
        return Answers(
            seconds=seconds,
            first_token_seconds=[seconds] * len(prompts),
            hit_tokens=[len(prompt) - 1 if self.warm else 0 for prompt in prompts],
            tokens=[[prompt[0] + (self.warm and Engine.lies)] * max_tokens for prompt in prompts],
            token_seconds=[0.02 if self.name == "tutti" else 0.01] * len(prompts),
        )

    def said(self):
        return ["INFO Tutti: loads on cuda:0 go by kernel (asked for)."]

    def forget(self):
        pass

    def close(self):
        pass


def run(compare, monkeypatch, tmp_path, *more):
    out = tmp_path / "result.json"
    arguments = [
        "--lengths",
        "100",
        "200",
        "--hit-length",
        "200",
        "--folder",
        str(tmp_path),
        "--json",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["compare", *arguments, *more])
    return compare.main(), json.loads(out.read_text())


def test_systems_take_turns_and_the_table_has_medians(compare, monkeypatch, tmp_path, capsys):
    code, result = run(compare, monkeypatch, tmp_path, "--rounds", "2")
    assert code == 0 and result["failed"] == {}
    printed = capsys.readouterr().out
    assert "| vLLM alone, computed | 1,000 | 1,000 | 0 | same |" in printed
    assert "| tutti, restarted | 500 | 500 | 199 | same |" in printed
    assert "| stores: ms a token | 10.000 | 20.000 | 2.000 |" in printed
    assert "| tutti | 500 | 500 | 500 | 500 |" in printed
    order = [name for name, length in Engine.asked if length == 200]
    assert order[:6] == ["alone", "alone", "alone", "tutti", "host", "fs"]


def test_an_engine_that_ends_is_left_out_and_named(compare, monkeypatch, tmp_path, capsys):
    Engine.dies = "fs"
    code, result = run(compare, monkeypatch, tmp_path)
    assert code == 1 and "code 1" in result["failed"]["fs"]
    printed = capsys.readouterr().out
    assert "| tutti, restarted |" in printed and "fs" not in printed


def test_what_is_kept_gives_the_same_tables(compare, monkeypatch, tmp_path, capsys):
    _, result = run(compare, monkeypatch, tmp_path)
    report = sys.modules["report"]
    kept = json.loads(json.dumps(report.kept(result)))
    assert report.table(kept) == report.table(result)
    assert str(tmp_path) not in json.dumps(kept)
    page = report.with_tables(f"a\n{report.BEGIN}old\n{report.END}b\n", report.table(kept))
    assert report.table(kept) in page and "old" not in page
    assert page.startswith("a\n") and page.endswith("b\n")
    with pytest.raises(ValueError, match="no <!-- tables -->"):
        report.with_tables("a", "b")


@pytest.mark.parametrize("lies", [False, True])
def test_every_family_is_compared_with_vllm_alone(compare, monkeypatch, tmp_path, capsys, lies):
    Engine.lies = lies
    families = importlib.import_module("families")
    arguments = ["--lengths", "100", "200", "--folder", str(tmp_path), "--json", str(tmp_path / "f.json")]
    arguments += ["--least-bytes", "0"]
    monkeypatch.setattr(sys, "argv", ["families", *arguments])
    assert families.main() == 0
    printed = capsys.readouterr().out
    answers = "computing True, restarted False" if lies else "same"
    for name in families.FAMILIES:
        assert f"| {name} | 1,000 / 1,000 | 500 / 500 | 298 of 300 | {answers} |" in printed
    assert json.loads((tmp_path / "f.json").read_text())["deepseek, latent"]["restarted"]["hits"] == [99, 199]


def test_the_published_page_has_the_tables_of_what_is_kept(compare):
    docs = Path(__file__).resolve().parents[4] / "docs"
    if not (docs / "performance").is_dir():
        pytest.skip("the documentation is not part of the installed package")
    kept = json.loads((docs / "performance" / "h200.json").read_text(encoding="utf-8"))
    page = (docs / "performance.md").read_text(encoding="utf-8")
    report = sys.modules["report"]
    assert report.with_tables(page, report.table(kept)) == page
