# SPDX-License-Identifier: Apache-2.0
"""Makes a schedule that failed as short as it can be, on real engines in this process.

``python -m tutti_vllm.testing.shrink --seed 7 --schedule 31``

Prints each shorter one that still fails as a command; the last line is the shortest.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from tutti_vllm.testing import campaign
from tutti_vllm.testing.campaign_models import VOCABULARY, model_of
from tutti_vllm.testing.one_process import prepare_process
from tutti_vllm.testing.schedules import make_prompts
from tutti_vllm.testing.scripts import Script, asked_by, from_text, script_of, shrink, to_text

__all__ = ["Trials", "command"]

DRAIN_SECONDS = 15.0
"""A script that does not end is a failure like another one, and many are tried."""


def command(seed: int, script: Script) -> str:
    """Return the command that runs a script."""
    return f"python -m tutti_vllm.testing.campaign --seed {seed} --script {shlex.quote(to_text(script))}"


class Trials:
    """Runs scripts of one campaign, each on an engine of its own, up to ``tries`` times or until it fails."""

    def __init__(self, seed: int, script: Script, folder: Path, tries: int) -> None:
        self._seed, self._folder, self._tries = seed, folder, tries
        model = model_of(seed)
        prompts = make_prompts(random.Random(seed), VOCABULARY, model.geometry.chunk_tokens)
        self._pool = campaign.Pool(model.make(folder / "model"), prompts, asked_by(script))
        self.count = 0

    def fails(self, script: Script) -> bool:
        """Return whether something is wrong."""
        for _ in range(self._tries):
            self.count += 1
            if campaign.run_script(self._seed, script, self._folder, self._pool):
                return True
        return False


def main() -> int:
    """Shrink; 1 if the failure does not show again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--schedule", type=int, help="number of the one that failed")
    what.add_argument("--script", help="a script that fails, to be made shorter")
    parser.add_argument("--seconds", type=float, default=300.0, help="time to look for shorter ones")
    parser.add_argument("--tries", type=int, default=2, help="runs until a script counts as right")
    arguments = parser.parse_args()
    prepare_process()
    campaign.DRAIN_SECONDS = DRAIN_SECONDS
    script = (
        from_text(arguments.script) if arguments.script else script_of(arguments.seed, arguments.schedule)
    )
    folder = Path(tempfile.mkdtemp(prefix="tutti-shrink-"))
    try:
        trials = Trials(arguments.seed, script, folder, arguments.tries)
        if not trials.fails(script):
            print(f"does not show again in {arguments.tries} runs: {command(arguments.seed, script)}")
            return 1
        shortest = shrink(
            script,
            trials.fails,
            seconds=arguments.seconds,
            told=lambda each: print(command(arguments.seed, each), file=sys.stderr, flush=True),
        )
        print(f"{trials.count} runs", file=sys.stderr)
        often = "" if trials.fails(shortest) else "  # not every time"
        print(command(arguments.seed, shortest) + often, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
