# SPDX-License-Identifier: Apache-2.0
"""Random schedules: the same seed gives the same ones, and everything there is comes up."""

import random
from collections import Counter

import pytest

from tutti_vllm.settings.settings import Settings
from tutti_vllm.testing.campaign_models import MODELS, model_of
from tutti_vllm.testing.faults import FAULT_MIXES, FaultMix
from tutti_vllm.testing.schedules import MAX_ANSWER, MAX_TOKENS, make_choice, make_prompts, make_schedule
from tutti_vllm.testing.tiny_families import FAMILIES


def test_a_seed_says_everything():
    def draw(seed):
        chance = random.Random(seed)
        prompts = make_prompts(chance, 512, 64)
        return prompts, [(make_choice(chance), make_schedule(chance, prompts)) for _ in range(20)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


@pytest.mark.parametrize("seed", range(20))
def test_every_prompt_and_its_answer_fit_the_engine(seed):
    prompts = make_prompts(random.Random(seed), 512, 64)

    def length(prompt):
        before = 0 if prompt.turn_of is None else length(prompts[prompt.turn_of]) + MAX_ANSWER
        return before + len(prompt.tokens)

    assert all(0 < length(prompt) <= MAX_TOKENS - MAX_ANSWER for prompt in prompts)
    assert any(prompt.turn_of is not None for prompt in prompts)


def test_every_kind_of_action_and_fault_comes_up():
    chance = random.Random(1)
    schedules = [make_schedule(chance, range(30)) for _ in range(400)]
    kinds = Counter(action.kind for schedule in schedules for action in schedule.actions)
    assert set(kinds) == {"ask", "abort", "step", "forget", "settle"}
    assert {schedule.faults for schedule in schedules} == set(FAULT_MIXES)
    forgets = {(a.first, a.second) for s in schedules for a in s.actions if a.kind == "forget"}
    assert forgets == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_engines_of_every_kind_come_up():
    chance = random.Random(4)
    choices = [make_choice(chance) for _ in range(60)]
    assert {(each.policy, each.overlapped) for each in choices} == {
        (policy, overlapped) for policy in ("recompute", "fail") for overlapped in (False, True)
    }


def test_choices_are_settings_that_this_release_knows():
    chance = random.Random(2)
    for _ in range(50):
        choice = make_choice(chance)
        Settings.parse({"capacity_bytes": 1} | choice.settings)


def test_neighbouring_campaigns_have_every_kind_of_model():
    found = {model_of(seed).name: model_of(seed) for seed in range(100, 100 + len(MODELS))}
    assert set(found) == {"llama", "gemma3", "mistral"}
    for name, model in found.items():
        if name in FAMILIES:
            facts = FAMILIES[name]
            assert model.layers == facts["num_hidden_layers"]
            assert model.kv_heads == facts["num_key_value_heads"] and facts["head_dim"] == 64


def test_faults_come_as_often_as_the_mix_says():
    chance = random.Random(3)
    mix = FaultMix(error=0.5, hang=0.25)
    seen = Counter(mix.pick(chance) for _ in range(4000))
    assert set(seen) == {"error", "hang", None}
    assert 1800 < seen["error"] < 2200 and 850 < seen["hang"] < 1150
    assert {FaultMix().pick(chance) for _ in range(100)} == {None}
