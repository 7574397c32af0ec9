# SPDX-License-Identifier: Apache-2.0
"""The commands and code in the documentation, and how each is kept true.

python tools/snippets.py          lists every block of shell or Python, and how it is kept true

A comment on the line before a block says what the tests do with it:

    <!-- snippet: run -->                 run in a folder of its own, after the blocks before it on its page
    <!-- snippet: run, exit 0 or 1 -->    the same, where another exit code is an answer too
    <!-- snippet: not run, WHY -->        not run; this list shows why

A block without one is checked word by word: what it installs, starts or runs exists and has these options
(`tests/packaging/test_snippets.py`). A command that nobody knows how to check must be marked.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.layers import ROOT

__all__ = ["Snippet", "commands", "read_snippets"]

FENCE = re.compile(
    r"(?:^<!-- snippet: (?P<mark>[^\n]*?) -->\n)?^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page.

    Attributes:
        page: path in the repository.
        line: where the block begins.
        language: what stands behind the fence; empty where nothing does.
        text: what is in the block.
        mark: what the comment before it says; empty where there is none.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def is_code(self) -> bool:
        """Whether it is something to run, and no picture, output or data."""
        return self.language in {"bash", "sh", "console", "python"}

    @property
    def is_run(self) -> bool:
        """Whether the tests run it as it stands."""
        return self.mark.partition(",")[0] == "run"

    @property
    def exit_codes(self) -> set[int]:
        """Exit codes that are an answer."""
        return {int(code) for code in re.findall(r"\d+", self.mark)} or {0}

    @property
    def how(self) -> str:
        """How it is kept true, in a word or a few."""
        return self.mark or "checked"


def read_snippets(page: str, root: Path = ROOT) -> list[Snippet]:
    """Return the blocks of a page in their order."""
    text = (root / page).read_text(encoding="utf-8")
    return [
        Snippet(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            match["text"],
            match["mark"] or "",
        )
        for match in FENCE.finditer(text)
    ]


def commands(text: str) -> Iterator[list[str]]:
    """Return the words of each command of a shell block; quotes may span lines."""
    held = ""
    for line in text.replace("\\\n", " ").splitlines():
        held += line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:  # a quotation goes on in the next line
            held += "\n"
            continue
        held = ""
        command: list[str] = []
        for word in words:
            if word in {"&&", "|", ";"}:
                yield command
                command = []
            else:
                command.append(word)
        if command:
            yield command


def main() -> None:
    """List what the documentation tells people to type."""
    from tools.docs_pages import pages

    for page in pages():
        for snippet in read_snippets(page):
            if snippet.is_code:
                print(f"{snippet.page}:{snippet.line}: {snippet.language}: {snippet.how}")


if __name__ == "__main__":
    main()
