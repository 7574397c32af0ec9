# SPDX-License-Identifier: Apache-2.0
"""MkDocs hooks: the documentation site takes every page from where it lies in the repository.

A page's name inside MkDocs is its path in the repository, so that relative links that work in a clone work on
the site, and one that leads nowhere fails the strict build. Only its address is made shorter. Files that
pages link to and that are no pages (examples, pictures, licences) are put on the site as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# MkDocs loads this file by its path.
sys.path.insert(0, str(ROOT))

from tools.docs_pages import address, pages  # noqa: E402

__all__ = ["nav_with_the_rest", "on_config", "on_files", "on_page_markdown"]

REST = "More"
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
FENCED = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^<!-- include: (\S+) (\w+) -->$", re.MULTILINE)


def nav_with_the_rest(nav: list[Any], known: Iterable[str]) -> list[Any]:
    """Return the navigation with every page that it does not name in its last section.

    Raises PluginError for a page that is named and does not exist.
    """

    def named(entries: Any) -> Iterator[str]:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            if isinstance(entry, str):
                yield entry
            else:
                yield from named(entry)

    listed, known = set(named(nav)), list(known)
    if missing := listed - set(known):
        raise PluginError(f"mkdocs.yml names pages that do not exist: {', '.join(sorted(missing))}")
    rest = [page for page in known if page not in listed]
    return [*nav, {REST: rest}] if rest else list(nav)


def linked_files(page: str) -> Iterator[str]:
    """Return the files of the repository that a page links to and that are no pages."""
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        target = (ROOT / page).parent.joinpath(link).resolve()
        if target.suffix != ".md" and target.is_file() and target.is_relative_to(ROOT):
            yield target.relative_to(ROOT).as_posix()


def on_config(config: Any) -> Any:
    """Put pages that the navigation does not name into its last section."""
    config.nav = nav_with_the_rest(config.nav, pages())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace what MkDocs found by the repository's pages and the files that they link to."""
    kept = [file for file in files if not file.src_uri.endswith(".md") and not (ROOT / file.src_uri).exists()]
    found = pages()
    others = sorted({other for page in found for other in linked_files(page)})
    for path in [*found, *others]:
        file = File.generated(config, path, abs_src_path=str(ROOT / path))
        file.dest_uri = address(path)
        kept.append(file)
    return Files(kept)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in `<!-- include: FILE NAME -->` with what stands in FILE between the marks of NAME."""

    def included(match: re.Match[str]) -> str:
        source, name = match.groups()
        text = (ROOT / source).read_text(encoding="utf-8")
        _, start, rest = text.partition(f"<!-- {name}: start -->\n")
        part, end, _ = rest.partition(f"<!-- {name}: end -->")
        if not start or not end:
            raise PluginError(f"{page.file.src_uri}: {source} has no part that is marked {name}")
        return part

    return INCLUDE.sub(included, markdown)
