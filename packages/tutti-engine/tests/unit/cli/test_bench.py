# SPDX-License-Identifier: Apache-2.0
"""``tutti bench`` moves real chunks; what it measures is not asserted."""

import errno

import pytest

from tutti_engine.store import rates as store_rates

SMALL = ("--mib", "2", "--layers", "4", "--segment-kib", "64", "--rounds", "2")


@pytest.fixture(autouse=True)
def _runtime():
    pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")


def test_each_data_path_has_figures_and_nothing_is_left_behind(tutti, tmp_path):
    found = tutti("bench", tmp_path, *SMALL, "--path", "posix", "--shape", "1000", "--json").document
    (path,) = found["paths"]
    assert path["data_path"] == "posix" and path["problem"] is None
    assert path["load_bytes_a_second"] > 0 and path["store_bytes_a_second"] > 0
    assert path["break_even_tokens_a_second"] == pytest.approx(path["load_bytes_a_second"] / 1000)
    assert found["shape"] == {"num_chunks": 8, "num_layers": 4, "segment_bytes": 65536, "batch": 4}
    assert list(tmp_path.iterdir()) == []
    assert "tokens/s" in tutti("bench", tmp_path, *SMALL, "--path", "posix").stdout


def test_what_is_read_is_what_was_written(tmp_path):
    from tutti_engine.backends.local import open_backend

    bench = store_rates.Bench(tmp_path, store_rates.Shape(5, 3, 4096, 2))
    written = [bytes(bench.window.slot(slot)) for slot in range(6)]
    seen = []
    with open_backend(bench.layout, "posix") as backend:
        backend.bind_staging(bench.window)
        bench.rate(backend.write_segments)
        bench.window.memory[:] = bytes(bench.window.nbytes)

        def read(batch):
            seen.extend(zip(batch.chunk_ids, batch.layers))
            return backend.read_segments(batch)

        bench.rate(read)
        assert [bytes(bench.window.slot(slot)) for slot in range(6)] == written
    assert sorted(seen) == [(chunk, layer) for chunk in range(5) for layer in range(3)]


def test_a_path_that_cannot_be_had_is_told_and_the_others_measured(tutti, tmp_path):
    found = tutti("bench", tmp_path, *SMALL, "--path", "posix", "--path", "zork", "--json", code=1).document
    assert [bool(each["problem"]) for each in found["paths"]] == [False, True]
    assert "zork" in found["paths"][1]["problem"] and found["paths"][1]["load_bytes_a_second"] is None
    assert "zork" in tutti("bench", tmp_path, *SMALL, "--path", "zork", code=2).stdout


def test_a_segment_that_fails_is_no_figure(tmp_path):
    class Failing:
        def wait(self, deadline):
            return True

        def status(self):
            return [0, errno.EIO]

    bench = store_rates.Bench(tmp_path, store_rates.Shape(1, 2, 4096, 1))
    with pytest.raises(store_rates.BackendError, match="1 segments failed: Input/output error"):
        bench.rate(lambda batch: Failing())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mib", "1", "--layers", "32"), "does not fit 1 MiB"),
        (("--segment-kib", "6"), "multiple of 4"),
        (("--mib", "999999999"), "lower --mib"),
        (("--shape", "big"), "shape must be like"),
    ],
)
def test_a_mistake_is_one_line(tutti, tmp_path, arguments, message):
    refused = tutti("bench", tmp_path, *arguments, code=2)
    assert message in refused.stderr and refused.stderr.count("\n") == 1
    assert "No such file" in tutti("bench", tmp_path / "missing", code=2).stderr
