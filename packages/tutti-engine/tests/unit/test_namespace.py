# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.namespace import FORMAT_VERSION, Namespace

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
facts = st.dictionaries(st.text(), values, max_size=4)


@given(facts)
def test_order_of_facts_does_not_matter(given_facts: dict) -> None:
    reversed_facts = dict(reversed(list(given_facts.items())))
    assert Namespace(given_facts).digest == Namespace(reversed_facts).digest


@given(facts, facts)
def test_equal_digest_means_equal_facts(one: dict, other: dict) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (Namespace(one) == Namespace(other)) is same


@given(facts)
def test_digest_alone_is_a_safe_path_component(given_facts: dict) -> None:
    digest = Namespace(given_facts).digest
    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")


def test_types_tell_facts_apart() -> None:
    digests = {Namespace({"a": value}).digest for value in (1, 1.0, True, "1", None, [1], {"1": 1})}
    assert len(digests) == 7


def test_known_digest_stays_the_same() -> None:
    # A change here makes every store that users have useless: raise FORMAT_VERSION and say so in the
    # changelog.
    assert FORMAT_VERSION == 1
    assert Namespace({"model": "m", "layers": 4}).digest == "527925937de468c9751c289916cab72c"


def test_facts_are_copied() -> None:
    mutable = {"dtypes": ["bf16"]}
    namespace = Namespace(mutable)
    mutable["dtypes"].append("fp8")
    namespace.facts["more"] = 1
    assert namespace.facts == {"dtypes": ["bf16"]}
    assert json.loads(namespace.to_json())["facts"] == {"dtypes": ["bf16"]}
    assert json.loads(namespace.to_json())["digest"] == namespace.digest


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"a": object()}, "'a'"),
        ({"a": {"b": float("nan")}}, "'b'"),
        ({"a": [{1: 2}]}, r"\[0\]"),
        ({"a": b"x"}, "bytes"),
    ],
)
def test_other_values_are_refused_by_place(bad: dict, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        Namespace(bad)
