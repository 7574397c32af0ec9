# SPDX-License-Identifier: Apache-2.0
"""Prompts of a file as tokens, and what a store says of its keys."""

from __future__ import annotations

import pytest

from tutti_engine.warming import read_prompts
from tutti_vllm.commands.prompt_keys import HashFacts, PromptError, token_ids

FACTS = {
    "model": "m",
    "block_hash": {"algorithm": "sha256", "seed": None, "tokens": 16},
    "block_tokens": 16,
    "blocks_per_chunk": 4,
    "vllm": "0.32.0",
}


class Tokenizer:
    """Says how it was called, as token ids."""

    def encode(self, text, add_special_tokens):
        return [1] * add_special_tokens + [ord(each) for each in text]

    def apply_chat_template(self, messages, **options):
        self.options = options
        if messages[0]["content"] == "bad":
            raise ValueError("no such role")
        return [len(messages)]


def ids(line, tokenizer=None):
    (ask,) = read_prompts([line])
    return token_ids(ask, lambda: tokenizer or Tokenizer())


def test_tokens_are_taken_as_they_are_and_need_no_tokenizer():
    (ask,) = read_prompts(['{"prompt": [5, 6]}'])
    assert token_ids(ask, lambda: 1 / 0) == [5, 6]


def test_a_text_gets_what_a_server_adds():
    assert ids('{"prompt": "a"}') == [1, 97]
    assert ids('{"prompt": "a", "add_special_tokens": false}') == [97]
    assert ids("plain") == [1, *map(ord, "plain")]


def test_messages_go_through_the_chat_template_with_their_options():
    tokenizer = Tokenizer()
    options = '"tools": [1], "chat_template_kwargs": {"think": 0}'
    line = f'{{"messages": [{{"role": "user", "content": "hi"}}], {options}}}'
    assert ids(line, tokenizer) == [1]
    assert tokenizer.options == {
        "tools": [1],
        "tokenize": True,
        "return_dict": False,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "think": 0,
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [('"bad"', "no such role"), ('[{"type": "text"}, {"type": "image_url"}]', "image_url"), ("3", "line 1")],
)
def test_what_cannot_be_tokens_is_told_with_its_line(content, words):
    line = f'{{"messages": [{{"role": "user", "content": {content}}}]}}'
    if words == "line 1":
        line = '{"messages": [3]}'
    with pytest.raises(PromptError, match="line 1") as refused:
        ids(line)
    assert words in str(refused.value)


def test_a_stores_facts_are_read():
    assert HashFacts.of(FACTS) == HashFacts("m", "sha256", None, 16, 64, "0.32.0")


@pytest.mark.parametrize(
    "change",
    [
        {"block_hash": None},
        {"block_hash": {"algorithm": "sha256", "seed": 3, "tokens": 16}},
        {"block_hash": {"algorithm": "sha256", "seed": None, "tokens": 0}},
        {"block_hash": {"algorithm": "sha256", "seed": None, "tokens": 48}},
        {"block_tokens": "many"},
        {"blocks_per_chunk": None},
    ],
)
def test_facts_that_the_connector_did_not_write_are_refused(change):
    with pytest.raises(PromptError):
        HashFacts.of(FACTS | change)
    with pytest.raises(PromptError):
        HashFacts.of({})
