# SPDX-License-Identifier: Apache-2.0
"""Adapters are told apart by their content, and by nothing once it may not be what vLLM has read."""

import threading
import time
from types import SimpleNamespace

import pytest

from tutti_engine import StoreResult
from tutti_vllm.scheduler_side import adapters as module
from tutti_vllm.scheduler_side.adapters import Adapters, mixed

FUTURE = time.time() + 3600
"""A server that starts later than all that these tests write."""


def make(folder, weights=b"weights"):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def request(path, name="a", **more):
    return SimpleNamespace(lora_name=name, lora_path=str(path), **more)


def digest(adapters, *args, **more):
    adapters.find(request(*args, **more))
    assert adapters.wait(30)
    found = adapters.find(request(*args, **more))
    return None if found is None else found.digest


def test_requests_are_left_out_until_the_content_is_read_and_then_known(tmp_path, monkeypatch):
    adapters = Adapters(FUTURE)
    one = request(make(tmp_path / "one"))
    slow, read = threading.Event(), module._read
    monkeypatch.setattr(module, "_read", lambda adapter: slow.wait(30) and read(adapter))
    assert adapters.find(one) is None
    assert adapters.find(one) is None
    slow.set()
    assert adapters.wait(30)
    adapter = adapters.find(one)
    assert len(adapter.digest) == 32 and adapters.is_unchanged(adapter)
    assert adapters.find(one) is adapter


def test_content_decides_and_not_the_name_or_the_place(tmp_path):
    first = digest(Adapters(FUTURE), make(tmp_path / "one"))
    assert digest(Adapters(FUTURE), make(tmp_path / "two"), name="b") == first
    assert digest(Adapters(FUTURE), make(tmp_path / "three", b"others")) != first
    assert digest(Adapters(FUTURE), make(tmp_path / "one", b"later")) != first
    (tmp_path / "two" / "adapter_config.json").rename(tmp_path / "two" / "other.json")
    assert digest(Adapters(FUTURE), tmp_path / "two") != first
    assert digest(Adapters(FUTURE), tmp_path / "three", is_3d_lora_weight=True) != digest(
        Adapters(FUTURE), tmp_path / "three"
    )


def by_content(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"changed")


def by_a_file_more(folder):
    (folder / "new_embeddings.safetensors").write_bytes(b"new")


def by_another_file_in_its_place(folder):
    new = folder.parent / "new"
    new.write_bytes(b"weights")
    new.replace(folder / "adapter_model.safetensors")


def by_another_folder_in_its_place(folder):
    folder.rename(folder.parent / "old")
    make(folder)


def by_going(folder):
    folder.rename(folder.parent / "old")


@pytest.mark.parametrize(
    "change",
    [by_content, by_a_file_more, by_another_file_in_its_place, by_another_folder_in_its_place, by_going],
)
def test_what_changes_is_left_out_for_good(tmp_path, change, caplog):
    folder = make(tmp_path / "one")
    adapters = Adapters(FUTURE)
    assert digest(adapters, folder)
    adapter = adapters.find(request(folder))
    change(folder)
    assert not adapters.is_unchanged(adapter) and adapters.find(request(folder)) is None
    assert caplog.text.count("has changed since the server started") == 1
    make(folder)
    assert digest(adapters, folder) is None, "vLLM may have read it in between"


def test_what_was_written_after_the_start_is_left_out(tmp_path):
    adapters = Adapters(time.time() - 3600)
    assert digest(adapters, make(tmp_path / "one")) is None


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path):
    for name in ("one", "two"):
        make(tmp_path / name, name.encode())
    link = tmp_path / "link"
    link.symlink_to("one")
    adapters = Adapters(FUTURE)
    assert digest(adapters, link)
    link.unlink()
    link.symlink_to("two")
    assert digest(adapters, link) is None
    files = tmp_path / "snapshot"
    files.mkdir()
    (files / "adapter_model.safetensors").symlink_to(tmp_path / "one" / "adapter_model.safetensors")
    assert digest(adapters, files)
    by_content(tmp_path / "one")
    assert digest(adapters, files) is None


@pytest.mark.parametrize("path", ["somebody/adapter", "", "/nowhere/adapter"])
def test_what_is_no_local_folder_is_left_out(path):
    adapters = Adapters(FUTURE)
    assert digest(adapters, path) is None
    assert adapters.find(SimpleNamespace()) is None


def test_what_was_stored_beside_a_change_is_not_believed(tmp_path):
    folder = make(tmp_path / "one")
    adapters = Adapters(FUTURE)
    assert digest(adapters, folder)
    adapters.note_store(4, [adapters.find(request(folder))])
    result = StoreResult(4, (b"sum", b"sum"))
    assert adapters.believed(result) == result
    by_content(folder)
    assert adapters.believed(result).checksums == (None, None)
    assert adapters.believed(StoreResult(5, (b"sum",))).checksums == (b"sum",)


def test_keys_of_adapters_never_meet():
    hashes = [bytes([n]) * 32 for n in range(3)]
    keys = [mixed(digest, hashes) for digest in (b"a" * 32, b"b" * 32)]
    everything = {*hashes, *keys[0], *keys[1]}
    assert len(everything) == 9 and {len(key) for key in everything} == {32}
