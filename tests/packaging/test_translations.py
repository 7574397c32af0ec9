# SPDX-License-Identifier: Apache-2.0
"""The Chinese pages say the same commands, settings and links as the English ones."""

from __future__ import annotations

import re

import pytest

from tools.layers import ROOT
from tools.snippets import read_snippets

PAIRS = [("README.md", "README.zh.md"), ("docs/quick-start.md", "docs/zh/quick-start.md")]
SETTING = re.compile(r"^\| `(\w+)` \| (.*?) \| .* \|$", re.MULTILINE)

by_pair = pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[pair[0] for pair in PAIRS])


@by_pair
def test_commands_are_the_same(english: str, chinese: str) -> None:
    def shown(page: str) -> list[tuple[str, str, str]]:
        return [(each.language, each.mark, each.text) for each in read_snippets(page)]

    assert shown(chinese) == shown(english)


@by_pair
def test_sections_are_the_same(english: str, chinese: str) -> None:
    def levels(page: str) -> list[str]:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        return re.findall(r"^(#+) ", text, re.MULTILINE)

    assert levels(chinese) == levels(english)


@by_pair
def test_each_names_the_other(english: str, chinese: str) -> None:
    for here, there in ((english, chinese), (chinese, english)):
        links = re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / here).read_text())
        assert (ROOT / there).resolve() in {((ROOT / here).parent / link).resolve() for link in links}


def test_settings_and_defaults_are_the_same() -> None:
    def rows(page: str) -> dict[str, str]:
        found = dict(SETTING.findall((ROOT / page).read_text()))
        return {name: default for name, default in found.items() if not name.startswith("tutti_")}

    english, chinese = rows("README.md"), rows("README.zh.md")
    assert list(chinese) == list(english), "a setting in README.md needs its line in README.zh.md"
    assert len(english) >= 20
    words = {
        "required": "必填",
        "none": "无",
        "`tutti` in the user's cache directory": "用户缓存目录下的 `tutti`",
    }
    assert chinese == {name: words.get(default, default) for name, default in english.items()}


@pytest.mark.parametrize("page", [pair[1] for pair in PAIRS])
def test_it_is_written_in_chinese(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 500
    # No Chinese sentence ends with a half-width full stop.
    assert not re.search(r"[\u4e00-\u9fff]\.(\s|$)", text)
