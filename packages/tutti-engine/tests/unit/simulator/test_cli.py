# SPDX-License-Identifier: Apache-2.0
"""``tutti simulate`` as a user calls it."""

import csv
import json
import subprocess
import sys

import pytest

from tutti_engine.simulator.sweep import parse_capacity
from tutti_engine.simulator.synthetic import make_trace
from tutti_engine.simulator.trace import unique_blocks, write_trace


def tutti(*arguments, ok=True):
    done = subprocess.run(
        [sys.executable, "-m", "tutti_engine.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode == 0) == ok, done.stderr
    return done


def test_a_sweep_gives_a_table_csv_and_json(tmp_path):
    pytest.importorskip("typer", reason="extra cli")
    write_trace(tmp_path / "trace.jsonl", make_trace("chat", 120))
    table, figures = tmp_path / "out.csv", tmp_path / "out.json"
    done = tutti(
        "simulate", tmp_path / "trace.jsonl", "-c", "5%", "-c", "100", "-p", "all",
        "--csv", table, "--json", figures,
    )  # fmt: skip
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["hit_density", "lru", "s3fifo", "clairvoyant"] * 2
    assert [int(row["capacity_chunks"]) for row in rows[4:]] == [100] * 4
    best = max(float(row["block_hit_rate"]) for row in rows)
    assert f"{best:.4f}" in done.stdout
    found = json.loads(figures.read_text())["rows"]
    assert found[0]["written_bytes"] == found[0]["stored"] * found[0]["chunk_bytes"]


def test_a_plot_is_a_png(tmp_path):
    pytest.importorskip("typer", reason="extra cli")
    pytest.importorskip("matplotlib", reason="extra plot")
    tutti("simulate", "synthetic:chat:60", "-c", "5%", "-c", "10%", "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere.jsonl",), "No such file"),
        (("synthetic:chess",), "kind must be one of chat"),
        (("synthetic:chat:many",), "the number of requests must be a whole number, not 'many'"),
        (("synthetic:chat:20", "-c", "5 apples"), "capacity must be like 5%, 9000 (blocks) or 200GB"),
        (("synthetic:chat:20", "-c", "0%"), "above 0, not '0%'"),
        (("synthetic:chat:20", "-p", "best"), "eviction must be one of hit_density, lru, s3fifo, not 'best'"),
        (("synthetic:chat:20", "--tenant-quota", "3"), "tenant_quota must be a share"),
    ],
)
def test_a_mistake_ends_in_one_message(arguments, message):
    pytest.importorskip("typer", reason="extra cli")
    done = tutti("simulate", *arguments, ok=False)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ").replace("  ", " ")
    assert "Traceback" not in done.stderr


def test_without_its_libraries_one_line_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from tutti_engine.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "tutti: typer is not installed: pip install 'tutti-engine[cli]'"


@pytest.mark.parametrize(
    ("text", "chunks"),
    [("50%", None), ("7", 7), ("2k", 2000), ("64MB", 64), ("1MiB", 1), ("1GiB", 1073), ("0.5%", None)],
)
def test_capacities_are_shares_blocks_or_bytes(text, chunks):
    requests = make_trace("chat", 60)
    if chunks is None:
        chunks = max(1, int(float(text[:-1]) / 100 * unique_blocks(requests)))
    assert parse_capacity(text, requests, 1_000_000) == chunks
