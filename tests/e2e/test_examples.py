# SPDX-License-Identifier: Apache-2.0
"""The examples of tutti-vllm as a user runs them: `vllm serve` with curl over a restart, then offline."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import MODEL

from tools.engine_process import ENVIRONMENT
from tools.layers import ROOT

EXAMPLES = ROOT / "packages" / "tutti-vllm" / "examples"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def model_with_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tutti_vllm.testing.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("words"), MODEL)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the example asks with curl, which is not installed")
def test_a_served_prompt_comes_from_disk_after_a_restart_and_offline(model_with_words, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    arguments = [str(model_with_words), str(tmp_path / "cache"), str(prompt)]
    options = {
        "dtype": "float32",
        "block-size": "32",
        "max-model-len": "4096",
        "num-gpu-blocks-override": "160",
    }
    served = run(
        [
            *("bash", str(EXAMPLES / "serve_and_curl.sh"), *arguments),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
            "--enforce-eager",
        ],
        SERVE=f"{sys.executable} -m vllm.entrypoints.openai.api_server --model",
        PORT=str(free_port()),
    )
    offline = run(
        [
            *(sys.executable, str(EXAMPLES / "offline.py"), *arguments),
            *(f"{name.replace('-', '_')}={value}" for name, value in options.items()),
            "enforce_eager=true",
        ]
    )
    answers = re.findall(r"^answer: (.*)$", served + offline, re.MULTILINE)
    cached = re.findall(r"^cached tokens: (\d+) of (\d+)$", served + offline, re.MULTILINE)
    assert len(answers) == 3 and len(set(answers)) == 1
    assert [int(tokens) for tokens, _ in cached] == [0, 1792, 1792], served + offline
    assert {int(whole) for _, whole in cached} == {len(PROMPT)}
    assert re.search(r"^Tutti: 0 chunks of 256 tokens are on disk", served, re.MULTILINE)
    assert re.search(r"^Tutti: 7 chunks of 256 tokens are on disk", served, re.MULTILINE)
    assert re.search(r"^vllm:tutti_hit_tokens_total\S* 1792\.0$", served, re.MULTILINE)
