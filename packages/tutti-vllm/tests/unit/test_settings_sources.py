# SPDX-License-Identifier: Apache-2.0
"""Which of several places a setting is taken from, and what ``tutti config`` says about it."""

import json
import os

import pytest

from tutti_vllm.settings.settings import Settings, SettingsError
from tutti_vllm.settings.sources import EXTRA, effective
from tutti_vllm.start import opening


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tutti.yaml"
    path.write_text("capacity_bytes: 3\neviction: lru\nttl_seconds: 60\n")
    return path


def test_the_order_is_extra_config_environment_file_default(file):
    pytest.importorskip("yaml")
    environment = {"TUTTI_CONFIG": str(file), "TUTTI_CAPACITY_BYTES": "2", "TUTTI_EVICTION": "s3fifo"}
    found = effective({"capacity_bytes": 1}, environment)
    got = {key: (each.value, each.source) for key, each in found.values.items()}
    assert got["capacity_bytes"] == (1, EXTRA)
    assert got["eviction"] == ("s3fifo", "environment TUTTI_EVICTION")
    assert got["ttl_seconds"] == (60, f"file {file}")
    assert got["strict"] == (False, "default")
    assert (found.settings.capacity_bytes, found.settings.policies.eviction) == (1, "s3fifo")


def test_without_other_sources_settings_are_those_of_extra_config():
    extra = {"capacity_bytes": 7, "root": "/a", "strict": True}
    assert effective(extra, {}).settings == Settings.parse(extra)


def test_the_environment_takes_json_or_plain_text():
    environment = {
        "TUTTI_CAPACITY_BYTES": "100000000000",
        "TUTTI_ROOT": '["/a", "/b"]',
        "TUTTI_STRICT": "true",
        "TUTTI_LOAD_MODE": "async",
        "TUTTI_TENANT_QUOTA": "0.5",
    }
    settings = effective({}, environment).settings
    assert settings.capacity_bytes == 100_000_000_000 and settings.strict is True
    assert [str(root) for root in settings.roots] == ["/a", "/b"]
    assert (settings.load_mode, settings.policies.tenant_quota) == ("async", 0.5)


def test_a_json_file_needs_no_yaml(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    (tmp_path / "a").write_text('{"capacity_bytes": 5}')
    assert effective({}, {"TUTTI_CONFIG": str(tmp_path / "a")}).settings.capacity_bytes == 5
    (tmp_path / "a").write_text("capacity_bytes: 5")
    with pytest.raises(SettingsError, match="pip install pyyaml"):
        effective({}, {"TUTTI_CONFIG": str(tmp_path / "a")})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TUTTI_CAPACITY_BYTE": "1"}, "TUTTI_CAPACITY_BYTE is set .*did you mean TUTTI_CAPACITY_BYTES"),
        ({"TUTTI_ROOTS": "/a"}, "did you mean TUTTI_ROOT?"),
        ({"TUTTI_CAPACITY_BYTES": "10GB"}, r"not '10GB' \(str\) \(environment TUTTI_CAPACITY_BYTES\)"),
        ({"TUTTI_STRICT": "1"}, r"strict must be true or false, not 1 .*\(environment TUTTI_STRICT\)"),
        ({"TUTTI_EVICTION": "fifo"}, r"eviction must be one of .*\(environment TUTTI_EVICTION\)"),
        ({"TUTTI_CONFIG": "tutti.yaml"}, "TUTTI_CONFIG must be an absolute path, not 'tutti.yaml'"),
        ({"TUTTI_CONFIG": "/nowhere/tutti.yaml"}, "/nowhere/tutti.yaml cannot be read"),
    ],
)
def test_a_mistake_names_where_it_is(environment, message):
    extra = {} if "TUTTI_CAPACITY_BYTES" in environment else {"capacity_bytes": 1}
    with pytest.raises(SettingsError, match=message) as caught:
        effective(extra, environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capacity_byte: 1", "unknown setting 'capacity_byte' in .*did you mean 'capacity_bytes'"),
        ("- 1", "must be keys with values, not list"),
        ("a: [", "are no YAML"),
        ("capacity_bytes: x", r"capacity_bytes must be .*\(file .*\)"),
        ("# " + "x" * (1 << 20), "is it the right file"),
        ("1: 2", "unknown setting 1 in"),
    ],
)
def test_a_file_that_is_wrong_is_named_in_one_line(tmp_path, text, message):
    pytest.importorskip("yaml")
    path = tmp_path / "tutti.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        effective({}, {"TUTTI_CONFIG": str(path)})
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_file_and_variables_of_others_say_nothing(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / "empty").write_text("# nothing\n")
    environment = {"TUTTI_CONFIG": str(tmp_path / "empty"), "TUTTI_UNSUPPORTED_VLLM": "1", "TUTTI_NVTX": "1"}
    for name in ("LONG_TESTS", "MODEL_EXAMPLES", "SCHEDULES", "KV_EXAMPLES", "RUNTIME_TESTS"):
        environment[f"TUTTI_{name}"] = "1"
    found = effective({"capacity_bytes": 1, "nvtx": False}, environment)
    assert found.settings == Settings.parse({"capacity_bytes": 1})
    assert found.values["nvtx"].source == "environment TUTTI_NVTX" and found.values["nvtx"].value is True


def test_a_server_starts_with_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("TUTTI_CAPACITY_BYTES", "4096")
    assert opening.check_settings({}).capacity_bytes == 4096
    assert opening.check_settings({"capacity_bytes": 1}).capacity_bytes == 1
    monkeypatch.setenv("TUTTI_CAPACITY_BYTES", "many")
    with pytest.raises(SystemExit, match="environment TUTTI_CAPACITY_BYTES"):
        opening.check_settings({})


@pytest.fixture
def tutti(monkeypatch):
    typer = pytest.importorskip("typer", reason="extra cli of tutti-engine")
    from typer.testing import CliRunner

    from tutti_vllm.commands.config import config

    for name in [each for each in os.environ if each.startswith("TUTTI_")]:
        monkeypatch.delenv(name)
    app = typer.Typer()
    app.command()(config)

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


def test_config_shows_every_setting_with_its_source(tutti, monkeypatch):
    monkeypatch.setenv("TUTTI_EVICTION", "lru")
    document = json.loads(tutti("--extra", '{"capacity_bytes": 9}', "--json").stdout)
    assert document["file"] is None
    assert document["settings"]["capacity_bytes"] == {"value": 9, "source": EXTRA}
    assert document["settings"]["eviction"] == {"value": "lru", "source": "environment TUTTI_EVICTION"}
    assert document["settings"]["min_free_bytes"] == {"value": 0, "source": "default"}
    shown = tutti("--extra", '{"capacity_bytes": 9}').stdout
    assert "environment TUTTI_EVICTION" in shown and "max_loading_bytes" in shown


def test_config_takes_a_file_and_vllms_whole_option(tutti, tmp_path):
    whole = {"kv_connector": "TuttiConnectorV1", EXTRA: {"capacity_bytes": 8}}
    (tmp_path / "transfer.json").write_text(json.dumps(whole))
    document = json.loads(tutti("--extra", tmp_path / "transfer.json", "--json").stdout)
    assert document["settings"]["capacity_bytes"]["value"] == 8


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "capacity_bytes is missing"),
        ('{"capacity": 1}', "unknown setting 'capacity'"),
        ("{", "no JSON"),
        ("/nowhere.json", "neither JSON nor a file"),
        ('{"kv_connector": "x", "kv_connector_extra_config": 3}', "must be a JSON object, not int"),
    ],
)
def test_a_mistake_ends_config_with_one_line(tutti, extra, message):
    refused = tutti(*(() if extra is None else ("--extra", extra)), code=2)
    assert message in refused.stderr and refused.stderr.count("\n") == 1
