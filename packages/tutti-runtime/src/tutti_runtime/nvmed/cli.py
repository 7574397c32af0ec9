# SPDX-License-Identifier: Apache-2.0
"""Command line of ``tutti-nvmed``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any

from tutti_runtime.nvmed.server import Broker
from tutti_runtime.nvmed.settings import DEFAULT_SOCKET, load_settings
from tutti_runtime.nvmed.status import read_status

__all__ = ["main"]

_PROGRAM = "tutti-nvmed"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Owns NVMe controllers and gives queue pairs of theirs to other processes.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="serve, with the settings of this JSON file")
    what.add_argument("--check", metavar="FILE", help="check a file of settings, and touch nothing")
    what.add_argument("--status", action="store_true", help="ask a running daemon how it is")
    parser.add_argument("--socket", default=None, help=f"default: {DEFAULT_SOCKET}")
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    return parser


def _say(line: str) -> None:
    print(f"{_PROGRAM}: {line}", file=sys.stderr, flush=True)


def _raise_file_limit() -> None:
    """Allow as many descriptors as may be: a client takes three, and 1024 is what many systems begin with."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _serve(path: str, socket: str | None) -> None:
    settings = load_settings(path)
    if socket is not None:
        settings = type(settings)(**{**vars(settings), "socket": socket})
    _raise_file_limit()
    broker = Broker(settings, _say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    _say(f"listening on {settings.socket} (pid {os.getpid()})")
    broker.serve()


def _print_status(status: dict[str, Any]) -> None:
    print(f"pid {status['pid']}, up {status['up_seconds']:.0f} s, {status['socket']}")
    for each in status["controllers"]:
        print(
            f"{each['name']}: {each['model']} {each['serial']} ({each['transport']}), "
            f"{'up' if each['up'] else 'DOWN'}, {each['clients']} client(s), {each['free_queues']} of "
            f"{each['queues']} queue pair(s) free, {each['resets']} reset(s)"
            + (f", {each['stranded']} STRANDED" if each["stranded"] else "")
        )
    for each in status["clients"]:
        print(
            f"  pid {each['pid']} uid {each['uid']} on {each['controller']}: {each['queues']} queue pair(s), "
            f"quiet for {each['quiet_seconds']:.1f} s"
        )
    print(f"{status['refused']} refused, {status['expired']} lease(s) expired")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns 0; 1 for what the system or a controller refuses; 2 for wrong settings."""
    options = _parser().parse_args(arguments)
    try:
        if options.check is not None:
            settings = load_settings(options.check)
            print(f"{options.check}: {len(settings.controllers)} controller(s), good")
        elif options.status:
            status = read_status(options.socket or DEFAULT_SOCKET)
            if options.json:
                print(json.dumps(status, indent=2))
            else:
                _print_status(status)
        else:
            _serve(options.config, options.socket)
    except ValueError as error:
        _say(str(error))
        return 2
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        return 1
    return 0
