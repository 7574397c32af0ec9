# SPDX-License-Identifier: Apache-2.0
"""Whether Mooncake's client is installed, and whether a cluster's master answers it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from tutti_engine.backends.mooncake_client import INSTALL, MooncakeOptions, check_cluster
from tutti_engine.doctor.findings import Finding, fail, note, ok
from tutti_engine.errors import BackendError

__all__ = ["DISTRIBUTIONS", "examine_mooncake"]

DISTRIBUTIONS = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
)

SECONDS = 5.0


def examine_mooncake(master: str | None) -> Iterator[Finding]:
    """Return what is installed and, with a master's ``host:port``, whether its cluster answers.

    Nothing is written to the cluster.
    """
    found = list(installed())
    if len(found) > 1:
        fix = "uninstall all but one: they share their files"
        yield fail("mooncake", f"several builds are installed: {', '.join(found)}", fix)
    elif found:
        yield ok("mooncake", found[0])
    elif master is None:
        yield note("mooncake", "not installed: needed only for a store that several servers share", INSTALL)
    else:
        yield fail("mooncake", "not installed: no store is shared without it", INSTALL)
    if master is None or not found:
        return
    name = "mooncake master"
    fix = "start mooncake_master, and let this machine reach its --rpc_port and the nodes' ports"
    try:
        seconds = check_cluster(MooncakeOptions(master, timeout=SECONDS))
    except BackendError as error:
        yield fail(name, str(error), "install it anew")
    except ValueError as error:
        yield fail(name, str(error), "give it as host:port")
    except OSError as error:
        yield fail(name, error.strerror or str(error), fix)
    else:
        yield ok(name, f"{master} answers a question in {1e3 * seconds:.1f} ms")


def installed() -> Iterator[str]:
    """Yield the name and version of each build that is installed."""
    for name in DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
