# SPDX-License-Identifier: Apache-2.0
"""``tutti keys``: the chunk keys of prompts in a store of vLLM's, for ``tutti export --keys``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti_engine.catalogue.reading import reading
from tutti_engine.cli.answers import JsonOption, NamespaceOption, RootsArgument, one_line_errors, print_json
from tutti_engine.cli.warm import read_lines
from tutti_engine.store.facts import choose, find_stores
from tutti_engine.warming import read_prompts
from tutti_vllm.commands.prompt_keys import HashFacts, keys_of, token_ids

__all__ = ["keys"]


def keys(
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="As for tutti warm; - for stdin.")],
    roots: RootsArgument,
    namespace: NamespaceOption = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer; by default the model's.")
    ] = None,
    as_plain: Annotated[bool | None, typer.Option("--plain/--jsonl")] = None,
    json: JsonOption = False,
) -> None:
    """Print the chunk keys of prompts, one in hex a line, each once: what tutti export --keys takes.

    Exit code: 0 when they are printed, 2 when they cannot be worked out.
    """
    with one_line_errors("keys"):
        asks = read_prompts(read_lines(prompts), plain=as_plain)
        stores = find_stores(roots)
        store = choose(stores, namespace or (stores[0].name if len(stores) == 1 else ""))
        facts = HashFacts.of(store.facts)
        load = functools.cache(lambda: load_tokenizer(tokenizer or facts.model))
        tokens = [token_ids(ask, load) for ask in asks]
        found = keys_of(facts, tokens, [ask.body.get("cache_salt") for ask in asks])
        with reading(store.catalogue) as connection:
            there = {key for (key,) in connection.execute("SELECT key FROM chunks")}
    every = list(dict.fromkeys(key for each in found for key in each))
    if not json:
        print(*(key.hex() for key in every), sep="\n")
        return
    each_prompt = [
        {
            "line": ask.line,
            "tokens": len(ids),
            "chunks": len(own),
            "resident": next((n for n, key in enumerate(own) if key not in there), len(own)),
        }
        for ask, ids, own in zip(asks, tokens, found)
    ]
    print_json({"name": store.name, "prompts": each_prompt, "keys": [key.hex() for key in every]})


def load_tokenizer(name: str) -> Any:
    """Return a model's tokenizer as vLLM loads it."""
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(name)
