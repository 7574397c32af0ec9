# SPDX-License-Identifier: Apache-2.0
"""The chunk keys of prompts without a server: vLLM's own hashes, with the facts of the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutti_engine.chunk_key import keys_from_block_hashes
from tutti_engine.errors import TuttiError
from tutti_engine.plan import ChunkKey
from tutti_engine.warming import Ask

__all__ = ["HashFacts", "PromptError", "keys_of", "token_ids"]

HASH_SEED = "PYTHONHASHSEED"


class PromptError(TuttiError, ValueError):
    """A prompt, or a store, whose keys cannot be worked out here."""


@dataclass(frozen=True, slots=True)
class HashFacts:
    """What a store's namespace says of its keys.

    Attributes:
        model: where the tokenizer lies.
        algorithm: vLLM's name of the block hash.
        seed: ``PYTHONHASHSEED`` of its server; None where it had none.
        hash_tokens: tokens that one block hash stands for.
        chunk_tokens: tokens of one chunk.
        vllm: the server's version.
    """

    model: str
    algorithm: str
    seed: str | None
    hash_tokens: int
    chunk_tokens: int
    vllm: str

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> HashFacts:
        """Read a namespace's facts. Raises PromptError for those that vLLM's connector did not write."""
        try:
            hashed = facts["block_hash"]
            found = cls(
                str(facts["model"]),
                str(hashed["algorithm"]),
                hashed["seed"],
                hashed["tokens"],
                facts["block_tokens"] * facts["blocks_per_chunk"],
                str(facts["vllm"]),
            )
        except (KeyError, TypeError) as error:
            raise PromptError(f"the store does not say how its keys are made ({error!r})") from error
        sizes = (found.hash_tokens, found.chunk_tokens)
        if not all(isinstance(each, int) and each > 0 for each in sizes) or sizes[1] % sizes[0]:
            raise PromptError(f"chunks of {sizes[1]!r} tokens and hashes of {sizes[0]!r} are no store's")
        if found.seed is not None and not isinstance(found.seed, str):
            raise PromptError(f"the store's hash seed is {found.seed!r}, which is none")
        return found


def token_ids(ask: Ask, tokenizer: Callable[[], Any]) -> list[int]:
    """Return a prompt's tokens, as vLLM's server gets them. Raises PromptError that names the line.

    Args:
        ask: the prompt.
        tokenizer: returns the model's; called only for what is not tokens already.
    """
    body = ask.body
    if isinstance(body.get("prompt"), list):
        return list(body["prompt"])
    try:
        if "prompt" in body:
            found = tokenizer().encode(
                body["prompt"], add_special_tokens=body.get("add_special_tokens", True)
            )
        else:
            refuse_media(body["messages"])
            found = tokenizer().apply_chat_template(
                body["messages"],
                tools=body.get("tools"),
                tokenize=True,
                return_dict=False,
                add_generation_prompt=body.get("add_generation_prompt", True),
                continue_final_message=body.get("continue_final_message", False),
                **body.get("chat_template_kwargs", {}),
            )
    except Exception as error:
        raise PromptError(f"line {ask.line} cannot be turned into tokens: {error}") from error
    return list(found)


def refuse_media(messages: Sequence[Any]) -> None:
    """Raise ValueError for images and sound: their tokens are their processor's business."""
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        kinds = {part.get("type") for part in parts} - {"text"}
        if kinds:
            raise ValueError(f"it has {', '.join(sorted(map(str, kinds)))}; only text can be")


def keys_of(
    facts: HashFacts, prompts: Sequence[Sequence[int]], salts: Sequence[str | None]
) -> list[list[ChunkKey]]:
    """Return the keys of each prompt's whole chunks, in order.

    Prompts with an adapter or with images have other keys. Raises PromptError where the installed vLLM is
    another one than the store's, or does not know its hash.
    """
    import vllm
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    if vllm.__version__ != facts.vllm:
        raise PromptError(f"the store is one of vLLM {facts.vllm}, and {vllm.__version__} is installed here")
    try:
        hash_function = get_hash_fn_by_name(facts.algorithm)
    except ValueError as error:
        raise PromptError(str(error)) from error
    keys = []
    with seeded(facts.seed):
        init_none_hash(hash_function)
        hasher = get_request_block_hasher(facts.hash_tokens, hash_function)
        for number, (tokens, salt) in enumerate(zip(prompts, salts, strict=True)):
            request = Request(
                str(number),
                list(tokens),
                SamplingParams(max_tokens=1),
                None,
                cache_salt=salt,
                block_hasher=hasher,
            )
            hashes = [bytes(each) for each in request.block_hashes]
            keys.append(keys_from_block_hashes(hashes, facts.chunk_tokens // facts.hash_tokens))
    return keys


@contextlib.contextmanager
def seeded(seed: str | None) -> Iterator[None]:
    """Let vLLM find the store's hash seed in the environment."""
    before = os.environ.pop(HASH_SEED, None)
    try:
        if seed is not None:
            os.environ[HASH_SEED] = seed
        yield
    finally:
        os.environ.pop(HASH_SEED, None)
        if before is not None:
            os.environ[HASH_SEED] = before
