# SPDX-License-Identifier: Apache-2.0
"""The GitHub workflows as text: `tools/ci.py` knows the packages, so their jobs are written from here.

A plan job maps the change to packages, one reusable job runs for each of them; lint and the cross-package
tests are jobs of their own.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["stale", "workflows", "write"]

HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Written by `python tools/ci.py workflows`; edit tools/ci_workflows.py, not this file.
"""

# An index with CPU-only builds of torch, set per repository; without it PyPI's CUDA build is fetched (3 GB).
ENVIRONMENT = """\
env:
  PIP_EXTRA_INDEX_URL: ${{ vars.TORCH_CPU_INDEX }}
  PIP_DISABLE_PIP_VERSION_CHECK: "1"
"""

CI = f"""\
{HEAD}name: ci
on:
  pull_request:
  push:
    branches: [main]
  workflow_dispatch:
permissions:
  contents: read
concurrency:
  group: ci-${{{{ github.ref }}}}
  cancel-in-progress: true
{ENVIRONMENT}jobs:
  plan:
    runs-on: ubuntu-24.04
    outputs:
      matrix: ${{{{ steps.plan.outputs.matrix }}}}
      cross: ${{{{ steps.plan.outputs.cross }}}}
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install packaging
      - id: plan
        env:
          BASE: ${{{{ github.event.pull_request.base.sha || github.event.before }}}}
        run: |
          scope=(--all)
          if git cat-file -e "$BASE^{{commit}}" 2>/dev/null; then scope=(--base "$BASE"); fi
          python tools/ci.py plan "${{scope[@]}}" | tee plan.json
          python - >> "$GITHUB_OUTPUT" <<'END'
          import json
          plan = json.load(open("plan.json"))
          print("matrix=" + json.dumps(plan["matrix"]))
          print("cross=" + json.dumps(plan["cross"]))
          END
  lint:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install hatch
      - run: hatch run lint:check
  package:
    needs: plan
    if: needs.plan.outputs.matrix != '[]'
    strategy:
      fail-fast: false
      matrix:
        package: ${{{{ fromJSON(needs.plan.outputs.matrix) }}}}
        python: ["3.10", "3.11", "3.12", "3.13"]
    uses: ./.github/workflows/package.yml
    with:
      package: ${{{{ matrix.package }}}}
      python: ${{{{ matrix.python }}}}
  cross:
    needs: plan
    if: needs.plan.outputs.cross == 'true'
    uses: ./.github/workflows/package.yml
    with:
      package: cross --with-vllm
      python: "3.11"
"""

PACKAGE = f"""\
{HEAD}name: package
on:
  workflow_call:
    inputs:
      package:
        description: distribution to build and test, or `cross`
        required: true
        type: string
      python:
        required: true
        type: string
permissions:
  contents: read
{ENVIRONMENT}jobs:
  run:
    name: ${{{{ inputs.package }}}} on ${{{{ inputs.python }}}}
    runs-on: ubuntu-24.04
    timeout-minutes: 40
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{{{ inputs.python }}}}
      - run: pip install hatch
      - run: hatch run ci:run ${{{{ inputs.package }}}} --work "$RUNNER_TEMP/work"
      - uses: actions/upload-artifact@v4
        if: failure()
        with:
          name: logs ${{{{ inputs.package }}}} ${{{{ inputs.python }}}}
          path: ${{{{ runner.temp }}}}/work/logs
"""

NEWEST_VLLM = f"""\
{HEAD}name: newest vLLM
on:
  schedule:
    - cron: "17 4 * * 1"
  workflow_dispatch:
permissions:
  contents: read
{ENVIRONMENT}jobs:
  contract:
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install hatch
      - run: hatch run ci:newest-vllm --work "$RUNNER_TEMP/work"
"""


RELEASE = f"""\
{HEAD}name: release
on:
  push:
    tags: ["tutti-*-v*"]
  workflow_dispatch:
permissions:
  contents: read
{ENVIRONMENT}jobs:
  files:
    # The PyPA's manylinux_2_28 image, or one with CUDA's toolkit made from it; set per repository.
    if: vars.MANYLINUX_IMAGE != ''
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    container: ${{{{ vars.MANYLINUX_IMAGE }}}}
    steps:
      - uses: actions/checkout@v4
      - run: /opt/python/cp311-cp311/bin/python tools/versions.py --check
      - run: tools/manylinux.sh release
      - uses: actions/upload-artifact@v4
        with:
          name: release
          path: release
          if-no-files-found: error
"""


def workflows() -> dict[str, str]:
    """Text of each workflow, by path relative to the repository's root."""
    return {
        ".github/workflows/ci.yml": CI,
        ".github/workflows/newest-vllm.yml": NEWEST_VLLM,
        ".github/workflows/package.yml": PACKAGE,
        ".github/workflows/release.yml": RELEASE,
    }


def stale(root: Path) -> list[str]:
    """Workflows whose file is missing or differs."""
    return [
        name
        for name, text in workflows().items()
        if not (root / name).is_file() or (root / name).read_text() != text
    ]


def write(root: Path) -> None:
    """Write every workflow."""
    for name, text in workflows().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
