# SPDX-License-Identifier: Apache-2.0
"""What a user sees who gets a setting wrong: one line, no traceback, and nothing was started."""

import os
import subprocess

import pytest
from tests.e2e.conftest import BLOCKS_PER_CHUNK, OPTIONS, prompt

from tools.engine_process import EngineFailedError, EngineProcess, EngineSpec


def refusal(model, connector, **how):
    """Start a server that refuses; return its one line and the error."""
    with (
        pytest.raises(EngineFailedError) as caught,
        EngineProcess(EngineSpec(str(model), connector, OPTIONS), **how) as engine,
    ):
        engine.answer(prompt(1, 100))
    (line,) = [line for line in caught.value.output.splitlines() if line.startswith("Tutti: ")]
    return line, caught.value


def test_a_wrong_setting_ends_the_start_with_one_line(model):
    line, error = refusal(model, {"capacity_byte": 1})
    assert line == (
        "Tutti: unknown setting 'capacity_byte' in kv_connector_extra_config: did you mean 'capacity_bytes'?"
    )
    assert error.code == 1 and "Traceback" not in error.output


def test_a_strict_server_refuses_a_root_that_it_cannot_use(model, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    line, error = refusal(model, {"capacity_bytes": 1 << 30, "root": str(tmp_path / "link"), "strict": True})
    assert str(tmp_path / "link") in line and "symbolic link" in line
    assert "Traceback" not in error.output


def test_a_capacity_below_one_chunk_says_what_would_do(model, tmp_path):
    connector = {"capacity_bytes": 1000, "root": str(tmp_path / "cache"), "strict": True}
    line, error = refusal(model, connector, one_process=True)
    assert "1000" in line and "Traceback" not in error.output


def served_without_cache(model, root, expected, one):
    """Start a lenient server on a root; return what it says about the cache."""
    connector = {"capacity_bytes": 64 << 20, "root": str(root), "blocks_per_chunk": BLOCKS_PER_CHUNK}
    with EngineProcess(EngineSpec(str(model), connector, OPTIONS), one_process=True) as engine:
        answer = engine.answer(one)
        assert (answer.tokens, answer.hit_tokens) == (expected[0], 0)
        # vLLM itself logs a traceback here, about the model's missing chat template.
        assert not [line for line in engine.output.splitlines() if 'File "' in line and "tutti_" in line]
        (line,) = [line for line in engine.output.splitlines() if "without the KV cache on disk" in line]
    return line


def test_a_store_in_use_names_its_owner(reference, start, model, tmp_path):
    one = prompt(3, 200)
    expected = reference(one)
    assert start().answer(one) == expected
    assert str(os.getpid()) in served_without_cache(model, tmp_path / "cache", expected, one)
    connector = {
        "capacity_bytes": 64 << 20,
        "root": str(tmp_path / "cache"),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
    }
    line, error = refusal(model, connector, one_process=True)
    assert str(os.getpid()) in line and "Traceback" not in error.output


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_read_only_root_leaves_the_cache_out(reference, model, tmp_path):
    one = prompt(4, 200)
    expected = reference(one)
    root = tmp_path / "read-only"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no mounts here: {mounted.stderr.strip()}")
    try:
        assert "Read-only" in served_without_cache(model, root / "cache", expected, one)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)
