# SPDX-License-Identifier: Apache-2.0
"""The example for transformers gives the same logits with a restored KV cache as with a computed one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the example needs torch and transformers")
pytest.importorskip("torch", reason="the example needs torch and transformers")

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_cache.py"
PROMPT = [(7 * number) % 251 for number in range(200)]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("tutti_example_transformers_cache", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(example):
    server = example.ToyServer(example.make_model())
    yield server
    assert server.engine.shutdown()


def test_the_same_logits_come_from_a_restored_cache(server) -> None:
    computed, reused = server.answer(PROMPT)
    assert reused == 0
    server.forget_pages()
    restored, reused = server.answer(PROMPT)
    assert reused == 192
    assert torch.equal(computed, restored)


def test_a_prompt_that_shares_its_beginning_reuses_whole_chunks(server, example) -> None:
    server.answer(PROMPT)
    server.forget_pages()
    other = [*PROMPT[:150], 1, 2, 3]
    restored, reused = server.answer(other)
    assert reused == 128
    computed, none = example.ToyServer(example.make_model()).answer(other)
    assert none == 0 and torch.equal(computed, restored)


def test_a_damaged_chunk_is_computed_again(server) -> None:
    computed, _ = server.answer(PROMPT)
    server.forget_pages()
    data = server.engine._backend._data
    place = next(at for at in range(len(data) - 1, -1, -1) if data[at])  # in the last chunk that is stored
    data[place] ^= 1
    restored, reused = server.answer(PROMPT)
    assert reused == 128
    assert torch.equal(computed, restored)
    assert server.answer(PROMPT)[1] == 192, "stored anew"
