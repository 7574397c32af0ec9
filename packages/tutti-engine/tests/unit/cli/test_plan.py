# SPDX-License-Identifier: Apache-2.0
"""``tutti plan`` over small traces."""

import pytest

TRACE = "synthetic:chat:150"


def test_larger_stores_hit_more_and_wear_is_told(tutti):
    found = tutti("plan", TRACE, "-c", "1%", "-c", "50%", "--endurance", "3500TB", "--json").document
    small, large = found["rows"]
    assert small["token_hit_rate"] < large["token_hit_rate"] <= 1
    assert small["capacity_bytes"] == small["capacity_chunks"] * 512 * found["bytes_per_token"]
    for row in found["rows"]:
        years = 3500e12 / row["written_bytes_a_day"] / 365.25
        assert row["life_years"] == pytest.approx(years) and years > 0


def test_it_agrees_with_simulate_on_the_same_trace(tutti, tmp_path):
    import json

    (row,) = tutti("plan", TRACE, "-c", "10%", "--json").document["rows"]
    tutti("simulate", TRACE, "-c", "10%", "-p", "hit_density", "--json", tmp_path / "s.json")
    simulated = json.loads((tmp_path / "s.json").read_text())["rows"][0]
    assert row["token_hit_rate"] == simulated["token_hit_rate"]
    assert row["written_bytes_a_day"] == pytest.approx(
        simulated["written_bytes"] / simulated["seconds"] * 86400
    )
    assert row["life_years"] is None


def test_the_shape_is_of_a_model_or_bytes(tutti):
    of_model = tutti("plan", TRACE, "-c", "5%", "--shape", "32x8x128x2", "--json").document
    of_bytes = tutti("plan", TRACE, "-c", "5%", "--shape", "131072", "--json").document
    assert of_model["bytes_per_token"] == 131072 and of_model["rows"] == of_bytes["rows"]
    half = tutti("plan", TRACE, "-c", "5%", "--shape", "32x8x128x1", "--json").document
    assert half["rows"][0]["capacity_bytes"] * 2 == of_model["rows"][0]["capacity_bytes"]
    shown = tutti("plan", TRACE, "-c", "5%").stdout
    assert "131,072 bytes a token" in shown and "?" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TRACE, "--shape", "32x8"), "shape must be like 32x8x128x2"),
        ((TRACE, "--endurance", "long"), "endurance must be like 3500TB"),
        ((TRACE, "-c", "5 apples"), "capacity must be like"),
        ((TRACE, "--policy", "best"), "eviction must be one of"),
        (("/nowhere.jsonl",), "No such file"),
        (("synthetic:chess",), "kind must be one of"),
    ],
)
def test_a_mistake_is_one_line(tutti, arguments, message):
    refused = tutti("plan", *arguments, code=2)
    assert message in refused.stderr and refused.stderr.strip().count("\n") == 0
