# SPDX-License-Identifier: Apache-2.0
"""What it costs to open many files: one call each, one batch, and Python's own os.open beside them.

    python benchmarks/open_files.py --folder /mnt/nvme0 --json open.json

Each round opens and closes all files in each way, in turn; medians in microseconds a file. With root, a cold
round is measured too: caches of names and inodes are dropped before it. The warm figures are also those of
``python -m tutti_runtime.bench``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tutti_runtime.bench.opening import can_drop_caches, measure_opening


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the files are made (default: the temporary folder)",
    )
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args()

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    report = {"warm": measure_opening(options.folder, options.files, options.rounds, tell=tell)}
    if can_drop_caches():
        report["cold"] = measure_opening(
            options.folder, options.files, max(1, options.rounds // 3), cold=True, tell=tell
        )
    for state, values in report.items():
        least = values["os.open + os.fstat"]
        for name, value in values.items():
            print(f"{state}  {name:20s}{value:9.1f} us a file {value / least:7.2f} of os.open")
    if options.json:
        options.json.write_text(json.dumps({"files": options.files, **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
