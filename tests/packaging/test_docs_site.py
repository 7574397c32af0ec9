# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds from the pages where they lie, and a link that leads nowhere fails it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.layers import ROOT

pytest.importorskip("mkdocs", reason="the site needs mkdocs-material: `hatch run docs:build`")
pytest.importorskip("material", reason="the site needs mkdocs-material: `hatch run docs:build`")

from mkdocs.exceptions import PluginError

from tools.docs_pages import address, pages
from tools.docs_site import linked_files, nav_with_the_rest


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command,
        cwd=root,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The pages, what they link to, and what builds them, in a folder of their own."""
    others = {other for page in pages() for other in linked_files(page)}
    for path in {
        "mkdocs.yml",
        "tools/__init__.py",
        "tools/docs_site.py",
        "tools/docs_pages.py",
        *pages(),
        *others,
    }:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_every_page_and_what_it_links_to_is_on_the_site(site: Path) -> None:
    others = {other for page in pages() for other in linked_files(page)}
    assert len(pages()) > 20 and "packages/tutti-engine/examples/custom_backend.py" in others
    assert [path for path in [*pages(), *others] if not (site / address(path)).is_file()] == []


def test_links_between_pages_lead_to_their_addresses(site: Path) -> None:
    text = (site / address("docs/store.md")).read_text()
    assert 'href="../engine/cli/"' in text
    assert 'href="metrics/"' in (site / address("packages/tutti-vllm/README.md")).read_text()


def test_a_link_that_leads_nowhere_fails_the_build(copied: Path) -> None:
    page = copied / "docs" / "store.md"
    page.write_text(page.read_text() + "\n[gone](gone.md)\n")
    done = build(copied, copied / "site")
    assert done.returncode != 0 and "gone.md" in done.stdout + done.stderr


def test_an_anchor_that_does_not_exist_fails_the_build(copied: Path) -> None:
    page = copied / "docs" / "store.md"
    page.write_text(page.read_text() + "\n[gone](spi.md#no-such-heading)\n")
    done = build(copied, copied / "site")
    assert done.returncode != 0 and "no-such-heading" in done.stdout + done.stderr


def test_a_new_page_is_found_without_being_named(copied: Path) -> None:
    (copied / "docs" / "new.md").write_text("# Something new\n")
    done = build(copied, copied / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Something new" in (copied / "site" / "index.html").read_text()


def test_addresses_are_unlike_each_other() -> None:
    addresses = [address(page) for page in pages()]
    assert len(set(addresses)) == len(addresses)
    assert address("README.md") == "index.html"
    assert address("README.zh.md") == "readme.zh/index.html"
    assert address("docs/spi.md") == "spi/index.html"
    assert address("packages/tutti-vllm/README.md") == "vllm/index.html"
    assert address("packages/tutti-vllm/docs/metrics.md") == "vllm/metrics/index.html"


def test_the_navigation_names_no_page_that_is_gone() -> None:
    nav = [{"Start": ["a.md", {"B": "b.md"}]}]
    assert nav_with_the_rest(nav, ["a.md", "b.md", "c.md"]) == [*nav, {"More": ["c.md"]}]
    assert nav_with_the_rest(nav, ["a.md", "b.md"]) == nav
    with pytest.raises(PluginError, match=r"b\.md"):
        nav_with_the_rest(nav, ["a.md"])
