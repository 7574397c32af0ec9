# SPDX-License-Identifier: Apache-2.0
"""What a user sees who gets a setting wrong: one line, no traceback, and nothing was started."""

import os
import subprocess

import pytest
from tests.e2e.conftest import OPTIONS, Engine, prompt

from tools.engine_run import RunFailedError, RunSpec, run_in_new_process


def refusal(model, connector, processes="1"):
    spec = RunSpec(str(model), [prompt(1, 100)], connector=connector, options=OPTIONS)
    with pytest.raises(RunFailedError) as caught:
        run_in_new_process(spec, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": processes})
    (line,) = [line for line in caught.value.output.splitlines() if line.startswith("Tutti: ")]
    return line, caught.value


@pytest.mark.parametrize(
    ("connector", "line"),
    [
        (
            {"capacity_byte": 1},
            "unknown setting 'capacity_byte' in kv_connector_extra_config: did you mean 'capacity_bytes'?",
        ),
        ({"capacity_bytes": "1TB"}, "capacity_bytes must be a whole number, not '1TB' (str)"),
        ({"root": "/tmp"}, "capacity_bytes is missing: say how much disk the cache may use, for example"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_one_line(model, connector, line):
    seen, error = refusal(model, connector)
    assert seen.startswith(f"Tutti: {line}")
    assert error.code == 1 and "Traceback" not in error.output


def test_a_strict_server_refuses_a_root_that_it_cannot_use(model, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    line, error = refusal(model, {"capacity_bytes": 1 << 30, "root": str(tmp_path / "link"), "strict": True})
    assert str(tmp_path / "link") in line and "symbolic link" in line
    assert "Traceback" not in error.output


@pytest.fixture
def lenient(model, tmp_path):
    """Start an engine that may go on without a cache; return it with the log's warnings."""
    running = []

    def make(**connector):
        connector = {
            "capacity_bytes": 64 << 20,
            "root": str(tmp_path / "cache"),
            "blocks_per_chunk": 2,
        } | connector
        running.append(Engine(model, connector, {}))
        return running[-1]

    yield make
    for engine in running:
        engine.close()


def test_a_root_that_cannot_be_used_leaves_the_cache_out(reference, lenient, tmp_path, caplog):
    one = prompt(2, 200)
    expected = reference(one)
    (tmp_path / "file").write_text("no directory")
    with caplog.at_level("WARNING", logger="tutti_vllm"):
        engine = lenient(root=str(tmp_path / "file" / "cache"))
    assert engine.answer(one) == expected
    assert engine.answer(one) == expected
    assert engine.counters() == {}


def test_a_capacity_below_one_chunk_says_what_would_do(model):
    line, error = refusal(
        model, {"capacity_bytes": 1000, "root": "/tmp/tutti-none", "strict": True}, processes="0"
    )
    assert "1000" in line and "Traceback" not in error.output


def test_a_store_in_use_names_its_owner(reference, lenient, start, model, tmp_path):
    one = prompt(3, 200)
    expected = reference(one)
    owner = start()
    assert owner.answer(one) == expected
    connector = {"capacity_bytes": 64 << 20, "root": str(tmp_path / "cache"), "blocks_per_chunk": 2}
    line, error = refusal(model, connector | {"strict": True}, processes="0")
    assert str(os.getpid()) in line and "Traceback" not in error.output
    answers = run_in_new_process(
        RunSpec(str(model), [one], connector=connector, options=OPTIONS),
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    assert [a.tokens for a in answers] == expected
    assert answers[0].hit_tokens == 0


def test_a_read_only_root_leaves_the_cache_out(reference, lenient, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    one = prompt(4, 200)
    expected = reference(one)
    root = tmp_path / "read-only"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "none", root], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no mounts here: {mounted.stderr.strip()}")
    try:
        engine = lenient(root=str(root / "cache"))
        assert engine.answer(one) == expected
        assert engine.counters() == {}
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)
