# SPDX-License-Identifier: Apache-2.0
"""Reading traces, good and bad, and making them up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.simulator.synthetic import KINDS, make_trace
from tutti_engine.simulator.trace import Request, TraceError, read_trace, write_trace

GOOD = {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}


def test_what_is_written_is_read_in_order_of_time(tmp_path):
    requests = [Request(2.0, 513, 3, (1, 2), "a"), Request(1.0, 10, 0, (5,))]
    write_trace(tmp_path / "t", requests)
    assert read_trace(tmp_path / "t") == requests[::-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "t:2: not JSON"),
        ("[" * 100_000, "t:2: not JSON"),
        ("[1]", "t:2: must be an object with timestamp, .*, not list"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "hash_ids"}), "t:2: hash_ids is missing"),
        (json.dumps(GOOD | {"timestamp": -1}), "timestamp must be milliseconds from 0 on, not -1"),
        (json.dumps(GOOD | {"timestamp": float("nan")}), "timestamp must be milliseconds"),
        (json.dumps(GOOD | {"input_length": 1.5}), "input_length must be a number of tokens, not 1.5"),
        (json.dumps(GOOD | {"hash_ids": [0, -1]}), "hash_ids must be a list of whole numbers"),
        (
            json.dumps(GOOD | {"hash_ids": [0]}),
            "1 hash_ids do not fit an input_length of 600 tokens in blocks of 512",
        ),
        (json.dumps(GOOD | {"tenant": 3}), "tenant must be a text, not 3"),
    ],
)
def test_a_line_that_is_no_request_is_named_with_its_rule(tmp_path, line, message):
    (tmp_path / "t").write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path / "t")


def test_a_file_without_requests_is_refused(tmp_path):
    (tmp_path / "t").write_text("\n")
    with pytest.raises(TraceError, match="there is no request in it"):
        read_trace(tmp_path / "t")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_trace_or_an_error_of_its_own(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("trace") / "t"
    path.write_bytes(data)
    try:
        read_trace(path)
    except TraceError:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_traces_are_the_same_for_the_same_seed_and_sound(kind, tmp_path):
    requests = make_trace(kind, 200, seed=5)
    assert requests == make_trace(kind, 200, seed=5) != make_trace(kind, 200, seed=6)
    assert 100 < len(requests) < 400
    write_trace(tmp_path / "t", requests)
    assert [r.blocks for r in read_trace(tmp_path / "t")] == [r.blocks for r in requests]
    parents = {}
    for request in requests:
        for parent, block in zip((None, *request.blocks), request.blocks):
            assert parents.setdefault(block, parent) == parent, "a block has one prefix"


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ValueError, match=r"kind must be one of chat, .*, not 'chess'"):
        make_trace("chess", 10)
