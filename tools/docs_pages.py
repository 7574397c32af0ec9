# SPDX-License-Identifier: Apache-2.0
"""Which pages the documentation has, and where each is on the site."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["address", "pages"]

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/**/*.md",
    "packages/*/README.md",
    "packages/*/CHANGELOG.md",
    "packages/*/docs/**/*.md",
    "packages/*/examples/**/*.md",
)


def pages(root: Path = ROOT) -> list[str]:
    """Return the paths of all pages in the repository."""
    found = {path for pattern in PAGES for path in root.glob(pattern)}
    return sorted(path.relative_to(root).as_posix() for path in found)


def address(page: str) -> str:
    """Return where a page, or a file that pages link to, is found on the site."""
    if not page.endswith(".md"):
        return f"files/{page}"
    stem = re.sub(r"^packages/tutti-([\w-]+)/(docs/)?", r"\1/", page.removesuffix(".md"))
    stem = stem.removeprefix("docs/")
    folder, _, name = stem.rpartition("/")
    parts = [part for part in (folder, "" if name == "README" else name.lower()) if part]
    return "/".join([*parts, "index.html"])
