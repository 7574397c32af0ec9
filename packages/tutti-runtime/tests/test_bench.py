# SPDX-License-Identifier: Apache-2.0
"""python -m tutti_runtime.bench: what it reports, prints and writes, with and without fio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti_runtime import bench
from tutti_runtime.bench import fio, machine, table

KIB = 1024
TINY = ["--file-mib", "1", "--blocks-kib", "64", "256", "--depth", "4", "--rounds", "2", "--direct", "off"]
TINY += ["--paths", "posix", "--latency-requests", "20", "--open-files", "5"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tutti_runtime.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_report_without_fio(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run(str(tmp_path), *TINY, "--no-fio", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "no fio" in done.stdout
    report = json.loads(out.read_text())
    rows = {(row["block"], row["direction"]): row for row in report["transfer"]}
    assert set(rows) == {(size * KIB, way) for size in (64, 256) for way in ("read", "write")}
    assert all(row["path"] == "posix" and row["gbs"] > 0 and "ratio" not in row for row in rows.values())
    assert report["latency"][0]["p50_us"] <= report["latency"][0]["p99_us"]
    assert set(report["opening"]["us_per_file"]) == {"os.open + os.fstat", "open", "open_batch"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_ratios_are_of_fio_in_the_same_round(tmp_path: Path) -> None:
    if fio.version() is None:
        pytest.skip("fio with io_uring is not installed")
    settings = bench.Settings(
        folder=tmp_path,
        file_bytes=256 * KIB,
        blocks=(64 * KIB,),
        depth=2,
        direct=False,
        rounds=1,
        paths=("posix",),
        latency_requests=5,
        open_files=0,
    )
    report = bench.measure(settings, quiet=True)
    rows = {(row["path"], row["direction"]): row for row in report["transfer"]}
    for way in ("read", "write"):
        mine, beside = rows["posix", way], rows["fio", way]
        assert mine["ratio"] == pytest.approx(mine["gbs"] / beside["gbs"])
    assert [row["path"] for row in report["latency"]] == ["posix", "fio"]
    assert all(row["p50_us"] > 0 for row in report["latency"])
    assert "opening" not in report


def made_up_report() -> dict:
    rows = [("uring", 0.99, 0.21), ("uring", 0.96, 0.25), ("posix", 0.51, 0.4), ("fio", None, 0.2)]
    return {
        "machine": {
            "cores": 8,
            "memory_gib": 32,
            "kernel": "6.1.0",
            "architecture": "x86_64",
            "file_system": "ext4",
            "drive": "NVMe drive",
            "load": 0.1,
        },
        "fio": "fio-3.33",
        "settings": {"file_bytes": 1 << 29, "depth": 32, "direct": True, "rounds": 5},
        "transfer": [
            {
                "path": path,
                "block": 256 * KIB * (1 + number % 2),
                "direction": way,
                "gbs": 1.0,
                "cpu_s_per_gb": cpu,
                **({"ratio": ratio, "cpu_ratio": 1.0} if ratio else {}),
            }
            for number, (path, ratio, cpu) in enumerate(rows)
            for way in ("read", "write")
        ],
    }


def test_the_table_of_the_readme_is_made_from_a_report(tmp_path: Path) -> None:
    readme, saved = tmp_path / "README.md", tmp_path / "report.json"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    saved.write_text(json.dumps(made_up_report()))
    for _ in range(2):
        done = run("--load", str(saved), "--update-readme", str(readme))
        assert done.returncode == 0, done.stderr
    text = readme.read_text()
    assert "| `uring` | 0.96 to 0.99 | 0.96 to 0.99 | 0.21 to 0.25 | 0.21 to 0.25 | Linux 5.6" in text
    assert "| `posix` | 0.51 | 0.51 | 0.40 | 0.40 | nothing" in text
    assert "8 cores, 32 GiB, Linux 6.1.0 (x86_64), ext4 on a NVMe drive; 512 MiB file, depth 32" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_a_readme_without_marks_is_left_alone(tmp_path: Path) -> None:
    readme, saved = tmp_path / "README.md", tmp_path / "report.json"
    readme.write_text("nothing here\n")
    saved.write_text(json.dumps(made_up_report()))
    done = run("--load", str(saved), "--update-readme", str(readme))
    assert done.returncode == 2
    assert "must have the lines" in done.stderr
    assert readme.read_text() == "nothing here\n"


def test_the_package_readme_has_the_marks() -> None:
    readme = Path(__file__).resolve().parent.parent / "README.md"
    if not readme.exists():
        pytest.skip("the tests are apart from the README")
    text = readme.read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "rounds=0 must be 1 or more"),
        (["--blocks-kib", "3"], "block=3072 must be a multiple of 4096"),
        (["--blocks-kib", "768"], "that divides file_bytes="),
        (["--open-files", "-1"], "open_files=-1"),
    ],
)
def test_senseless_sizes_are_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run(str(tmp_path), *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = run(str(tmp_path / "nowhere"), *TINY, "--no-fio")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


def test_the_machine_is_told_by_its_properties(tmp_path: Path) -> None:
    facts = machine.describe(tmp_path)
    assert facts["cores"] == os.cpu_count()
    assert os.uname().nodename not in json.dumps(facts)
    assert machine.drive_class(Path("/proc")) == "no block device"
    assert machine.file_system(Path("/proc")) == "proc"
