# SPDX-License-Identifier: Apache-2.0
"""What a user may say of a shared store, and what becomes of it."""

import pytest

from tutti_engine.namespace import Namespace
from tutti_vllm.settings.settings import Settings, SettingsError
from tutti_vllm.settings.shared import SharedSettings
from tutti_vllm.settings.sources import effective
from tutti_vllm.start.shared_opening import execution_settings, shared_namespace

KIND = "tutti_engine.testing.shared_stores:DirectoryStore"
STORE = {"kind": KIND, "path": "/pool"}


def parsed(**given):
    return Settings.parse({"capacity_bytes": 1, **given}).shared


def test_it_is_off_by_default():
    assert parsed().shared_store is None
    assert parsed(shared_store=STORE).options == {"path": "/pool"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shared_store": "mooncake"}, "shared_store must be an object with a kind"),
        ({"shared_store": {}}, "shared_store must be an object with a kind"),
        ({"shared_store": {"kind": "moncake"}}, "did you mean 'mooncake'"),
        ({"shared_store": STORE | {"pth": 1}}, "no option 'pth': did you mean 'path'"),
        ({"shared_store": {"kind": KIND}}, "missing a required argument: 'path'"),
        ({"shared_write": "sometimes"}, "shared_write must be one of never, always, second_sight, hot"),
        ({"shared_timeout_seconds": 0}, "shared_timeout_seconds must be at least 1, not 0"),
        ({"shared_lookup_ms": 1.5}, "shared_lookup_ms must be a whole number"),
        ({"shared_max_writing_bytes": True}, "shared_max_writing_bytes must be a whole number"),
        ({"shared_weights": ""}, "shared_weights must be a name"),
        ({"shared_stor": STORE}, "did you mean 'shared_store'"),
    ],
)
def test_what_is_wrong_is_named(given, said):
    with pytest.raises(SettingsError) as error:
        parsed(**given)
    assert said in str(error.value)


def test_the_environment_may_name_it_and_its_mistakes_are_told_with_their_source():
    environment = {"TUTTI_SHARED_STORE": '{"kind": "' + KIND + '", "path": "/pool"}'}
    found = effective({"capacity_bytes": 1}, environment)
    assert found.settings.shared.shared_store == STORE
    assert found.values["shared_store"].source == "environment TUTTI_SHARED_STORE"
    with pytest.raises(SettingsError, match="environment TUTTI_SHARED_STORE"):
        effective({"capacity_bytes": 1}, {"TUTTI_SHARED_STORE": '{"kind": "nothing"}'})


def test_named_weights_stand_for_path_and_dates_alone():
    facts = {"model": "/a", "weights": {"files": [["m", 1, 2]]}, "dtype": "float16", "hf_config": "a at /a"}
    other = facts | {"model": "/b", "weights": {"files": [["m", 1, 3]]}, "hf_config": "a at /b"}
    plain = SharedSettings()

    def shared(facts, name="eight", config="a"):
        return shared_namespace(Namespace(facts), SharedSettings(shared_weights=name), config)

    assert shared_namespace(Namespace(facts), plain, "a") == Namespace(facts)
    assert shared_namespace(Namespace(facts), plain, "a") != shared_namespace(Namespace(other), plain, "a")
    assert shared(facts) == shared(other)
    assert shared(facts) != shared(facts | {"dtype": "float32"})
    assert shared(facts) != shared(facts, config="b")
    assert shared(facts) != shared(facts, name="nine")


def test_a_step_never_waits_for_room_to_write():
    settings = execution_settings(SharedSettings(shared_timeout_seconds=3, shared_max_writing_bytes=1 << 20))
    assert (settings.store_stall, settings.io_timeout, settings.store_bank_bytes) == (0.0, 3, 1 << 20)
