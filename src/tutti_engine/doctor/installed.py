# SPDX-License-Identifier: Apache-2.0
"""What is installed, and which way the storage runtime would choose."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tutti_engine.doctor.findings import Finding, fail, note, ok, warn
from tutti_engine.doctor.machine import driver

__all__ = ["data_path", "examine_installed", "gpu_ways"]


def examine_installed() -> Iterator[Finding]:
    """Return the packages' findings and, where the storage runtime is there, its own."""
    yield ok("tutti-engine", version_of("tutti-engine"))
    yield from storage_runtime()
    try:
        import_module("tutti_kv_kernels")
        yield ok("tutti-kv-kernels", version_of("tutti-kv-kernels"))
    except ImportError as error:
        fix = "pip install 'tutti-engine[kernels]' (needs torch)"
        yield warn("tutti-kv-kernels", f"{error}: without it no torch server is served", fix)
    yield driver()


def version_of(name: str) -> str:
    """Return a distribution's version, or that it runs from its source."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a distribution"


def storage_runtime() -> Iterator[Finding]:
    """Return the data path of now and the ways between drive and GPU."""
    try:
        import tutti_runtime
    except ImportError as error:
        fix = "pip install 'tutti-engine[local]'"
        yield fail("tutti-runtime", f"{error}: without it nothing is kept on disk", fix)
        return
    yield ok("tutti-runtime", version_of("tutti-runtime"))
    try:
        with tutti_runtime.make_file_runtime() as runtime:
            caps = runtime.caps()
    except Exception as error:
        yield fail("data path", f"the storage runtime cannot be made: {error}", "see the lines above")
        return
    yield data_path(caps)
    try:
        ways = import_module("tutti_runtime.doctor").examine()
    except Exception as error:
        yield note("GPU ways", f"tutti-runtime cannot tell them: {error}")
        return
    yield from gpu_ways(ways)


def data_path(caps: dict[str, Any]) -> Finding:
    """Return which way host I/O takes and why."""
    return ok("data path", f"{caps['data_path']}: {caps['chosen_because']}")


def gpu_ways(ways: Any) -> Iterator[Finding]:
    """Return one line a way between drive and GPU; none of them is needed, so what is missing is a note."""
    for way in ways:
        open_ones = [each for each in way.findings if each.state != "met"]
        # What is missing for certain says more than what cannot be told.
        missing = min(open_ones, key=lambda each: each.state != "missing", default=None)
        if way.possible == "yes":
            yield ok(f"way {way.name}", way.title)
        else:
            answer = "not possible" if way.possible == "no" else "cannot be told"
            text = f"{answer}: {missing.name}, {missing.found}" if missing else answer
            yield note(f"way {way.name}", text, missing.fix if missing else "")
