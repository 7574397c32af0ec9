# SPDX-License-Identifier: Apache-2.0
"""The README's table of what works in which form of cache: each cell is a transfer that is made and compared.

``python tests/support_table.py --write`` brings the README up to date; a test fails when it is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from cache_samples import FORMS, Form, Sample, Sizes

import tutti_kv_kernels as tk

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- support table: begin -->\n", "<!-- support table: end -->\n"


def round_trip(
    form: Form, ids: str, *, rows: int = 1, layers: list[int] | None = None, tokens: range | None = None
) -> bool:
    """Whether two blocks (or four tokens) come back, and nothing else is written."""
    sizes = Sizes(L=3, B=5, N=4, H=3, C=8, rows=rows)
    source = Sample(form, sizes, ids)
    numbers = [4, 1] if ids == "blocks" else [17, 2, 9, 8]
    chosen = layers if layers is not None else list(range(sizes.L))
    slot_bytes = len(numbers) * max(map(source.cache.block_bytes, range(sizes.L)))
    window = torch.zeros(len(chosen) * slot_bytes, dtype=torch.uint8)
    slots = torch.arange(len(chosen))
    block_ids = torch.tensor([numbers] * len(chosen) if layers is not None else [numbers])
    where = {
        "slots": slots if layers is not None else slots.view(-1, 1),
        "layers": torch.tensor(chosen) if layers is not None else None,
        "slot_bytes": slot_bytes,
    }
    checksums = source.cache.gather(block_ids, window, **where)
    part = None if tokens is None else torch.tensor([[tokens.start, len(tokens)]] * len(chosen))
    if part is not None and layers is None:
        part = part.view(-1, 1, 2)
    target, expected = replace(source, seed=None), replace(source, seed=None)
    status = target.cache.scatter(
        window, block_ids=block_ids, checksums=checksums, token_ranges=part, **where
    )
    for layer in chosen:
        for column, number in enumerate(numbers):
            for token in range(source.tokens_per_id):
                if tokens is None or column * source.tokens_per_id + token in tokens:
                    expected.copy_tokens(source, layer, number, range(token, token + 1))
    return not status.any() and target.memory() == expected.memory()


def runs_of_a_block(form: Form) -> str:
    """How many runs of memory a block is: by numbering all bytes and reading them in packed order."""
    sizes = Sizes(L=2, B=2, N=4, H=5, C=1, dtype=torch.uint8)
    sample = Sample(form, sizes)
    for storage in sample.storages:
        storage.copy_(torch.arange(storage.numel()))
    order: list[tuple[int, int]] = []
    for part in sample.parts(0, 1):
        owner = next(
            index
            for index, storage in enumerate(sample.storages)
            if storage.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        )
        order += [(owner, byte) for byte in part.reshape(-1).tolist()]
    breaks = sum(a[0] != b[0] or a[1] + 1 != b[1] for a, b in pairwise(order))
    return {0: "1", 1: "2 (K, V)", 2: "1 a plane", 4: "1 a head"}[breaks]


CHECKS: dict[str, Callable[[Form], bool | None]] = {
    "one layer": lambda form: round_trip(form, "blocks", layers=[1]),
    "all layers, one call": lambda form: round_trip(form, "blocks"),
    "some tokens": lambda form: round_trip(form, "blocks", tokens=range(3, 6)),
    "slot mapping": lambda form: round_trip(form, "tokens"),
    "blocks of several rows": lambda form: round_trip(form, "blocks", rows=2) if form.rows else None,
}


def handed_over(name: str) -> tuple[str, str]:
    """Number and tensors of a named format; of vLLM's orders, what vLLM registers."""
    for known in tk.FORMATS:
        if known.name == name:
            return str(known.number), known.tensors
    return "", "view `[B, H, N, C]` a layer"


def table() -> str:
    """The table as Markdown, from transfers made now."""
    head = ["id", "form", "tensors", "runs a block", *CHECKS]
    lines = [head, ["---"] * len(head)]
    for name, form in FORMS.items():
        number, tensors = handed_over(name)
        marks = {True: "yes", False: "NO", None: ""}
        cells = [marks[check(form)] for check in CHECKS.values()]
        lines.append([number, name, tensors, runs_of_a_block(form), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def updated(text: str) -> str:
    """The README's text with the table of now."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the table of supported caches")
    parser.add_argument("--write", action="store_true", help="put it into the README")
    if parser.parse_args().write:
        README.write_text(updated(README.read_text("utf-8")), "utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
