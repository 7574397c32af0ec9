# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tutti_engine import PolicySettings
from tutti_vllm.settings.settings import Settings, SettingsError


def test_defaults(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert Settings.parse({"capacity_bytes": 10}) == Settings(10, (Path("/var/cache/me/tutti"),), 0, False)


def test_home_is_the_fallback(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert Settings.parse({"capacity_bytes": 10}).roots == (Path("/home/someone/.cache/tutti"),)


def test_one_root_or_several():
    assert Settings.parse({"capacity_bytes": 1, "root": "/a"}).roots == (Path("/a"),)
    assert Settings.parse({"capacity_bytes": 1, "root": ["/a", "/b"]}).roots == (Path("/a"), Path("/b"))


def test_policies_are_keys_of_their_own():
    extra = {"capacity_bytes": 1, "eviction": "lru", "admission": "second_sight", "ttl_seconds": 60}
    wanted = PolicySettings(eviction="lru", admission="second_sight", ttl_seconds=60)
    assert Settings.parse(extra).policies == wanted


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"capacity_byte": 1}, "'capacity_byte' .*did you mean 'capacity_bytes'"),
        ({"capacity_bytes": 1, "roots": "/a"}, "'roots' .*did you mean 'root'"),
        ({"capacity_bytes": 1, "zzz": 1}, "'zzz' .*known settings are root, capacity_bytes"),
        ({}, 'capacity_bytes is missing.*"capacity_bytes": 100000000000'),
        (
            {"capacity_bytes": "10GB"},
            r"capacity_bytes must be .*such as 100000000000, not '10GB' \(str\)",
        ),
        ({"capacity_bytes": 1, "prepare": "zeros"}, "prepare must be one of sparse, fallocate, written, not"),
        ({"capacity_bytes": 1, "min_free_bytes": -1}, "min_free_bytes must be at least 0"),
        ({"capacity_bytes": 1, "read_only": "yes"}, "read_only must be true or false"),
        (
            {"capacity_bytes": 1e12},
            r"capacity_bytes must be .*, not 1000000000000.0 \(float\)",
        ),
        (
            {"capacity_bytes": True},
            "capacity_bytes must be .*such as 100000000000, not True",
        ),
        ({"capacity_bytes": 0}, "capacity_bytes must be at least 1, not 0"),
        ({"capacity_bytes": 1, "blocks_per_chunk": -1}, "blocks_per_chunk must be at least 0, not -1"),
        (
            {"capacity_bytes": 1, "blocks_per_chunk": None},
            "blocks_per_chunk must be a whole number, not None",
        ),
        ({"capacity_bytes": 1, "strict": "yes"}, "strict must be true or false, not 'yes'"),
        ({"capacity_bytes": 1, "strict": 1}, "strict must be true or false, not 1"),
        ({"capacity_bytes": 1, "root": []}, "root must be a path or a list of paths, not"),
        ({"capacity_bytes": 1, "root": None}, "root must be a path or a list of paths, not None"),
        ({"capacity_bytes": 1, "root": {"a": 1}}, "root must be a path or a list of paths, not"),
        ({"capacity_bytes": 1, "root": ["/a", 3]}, "root must be .*; 3 is no path"),
        ({"capacity_bytes": 1, "root": ""}, "root must be .*; '' is no path"),
        ({"capacity_bytes": 1, "root": "/a\0b"}, "is no path"),
        ({"capacity_bytes": 1, "root": "cache"}, "root must be an absolute path, not 'cache'"),
        ({"capacity_bytes": 1, "root": ["/a", "/a"]}, "root names a directory twice"),
        ({"capacity_bytes": 1, "evictions": "lru"}, "'evictions' .*did you mean 'eviction'"),
        ({"capacity_bytes": 1, "eviction": "fifo"}, "eviction must be one of .*did you mean 's3fifo'"),
        ({"capacity_bytes": 1, "ttl_seconds": 0}, "ttl_seconds must be from 1 to"),
        ({"capacity_bytes": 1, "daily_write_bytes": 1.5}, "daily_write_bytes must be a whole number"),
        ({"capacity_bytes": 1, "tenant_quota": 2}, "tenant_quota must be a share above 0"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule_in_one_line(extra, message):
    with pytest.raises(SettingsError, match=message) as caught:
        Settings.parse(extra)
    assert "\n" not in str(caught.value)
