# SPDX-License-Identifier: Apache-2.0
"""What is published, made from built wheels and sdists: `python tools/release.py DIST --to FOLDER`.

Compiled wheels are repaired for a glibc that many systems have (auditwheel), every wheel is checked by the
rules of `tools/wheels.py` and gets its bill of materials, and SHA256SUMS names all files. Nothing is
uploaded. DIST is what `tools/manylinux.sh` or `hatch run ci:run --all --dist DIST` leaves.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    # Called by path, Python puts tools/ first on the module path, not the folder that holds it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import sbom, wheels
from tools.ci_plan import publication_order
from tools.layers import read_distributions

__all__ = ["POLICY", "ReleaseError", "release"]

POLICY = "manylinux_2_28"
"""glibc 2.28: the oldest that the supported versions of torch ask for."""

LEFT_OUT = ("libtorch_cpu.so", "libtorch.so", "libc10.so")
"""Libraries that whoever imports a wheel has loaded before: torch's own."""


class ReleaseError(Exception):
    """Something that must not be published; the text names the file and the rule."""


def release(dist: Path, to: Path, policy: str = POLICY) -> list[Path]:
    """Fill a folder with what is published, in the order of publication, and return the files.

    Args:
        dist: wheels and one sdist of each distribution.
        to: an empty folder, or one to make.
        policy: auditwheel's name of the oldest systems that compiled wheels shall run on.

    Raises ReleaseError.
    """
    if to.exists() and any(to.iterdir()):
        raise ReleaseError(f"{to} is not empty: what lies there would be published as well")
    to.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    distributions = read_distributions()
    for name in publication_order(distributions):
        version = distributions[name].version
        stem = f"{name.replace('-', '_')}-{version}"
        sdists, found = sorted(dist.glob(f"{stem}.tar.gz")), sorted(dist.glob(f"{stem}-*.whl"))
        if len(sdists) != 1 or not found:
            raise ReleaseError(
                f"{dist} has {len(found)} wheels and {len(sdists)} sdists of {name} {version};"
                " it needs one sdist and a wheel or more"
            )
        files.append(Path(shutil.copy2(sdists[0], to)))
        for wheel in found:
            published = checked(repaired(wheel, to, policy), policy)
            files += [published, sbom.write(published, to)]
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (to / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    return [*files, to / "SHA256SUMS"]


def repaired(wheel: Path, to: Path, policy: str) -> Path:
    """Return a wheel that says on which systems it runs; a pure one as it is. Raises ReleaseError."""
    if wheel.name.endswith("-any.whl"):
        return Path(shutil.copy2(wheel, to))
    before = set(to.iterdir())
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", to]
    command += ["--plat", f"{policy}_{platform.machine()}", "--only-plat"]
    for library in LEFT_OUT:
        command += ["--exclude", library]
    done = subprocess.run([*map(str, command), str(wheel)], capture_output=True, text=True, check=False)
    made = sorted(set(to.iterdir()) - before)
    if done.returncode != 0 or len(made) != 1:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ReleaseError(f"{wheel.name}: auditwheel refuses {policy}: {' '.join(reason)}")
    return made[0]


def checked(wheel: Path, policy: str) -> Path:
    """Return a wheel that keeps the rules. Raises ReleaseError with all that it breaks."""
    found = wheels.check_wheel(wheel)
    if not wheel.name.endswith("-any.whl") and policy not in wheel.name:
        found.append(f"{wheel.name}: its tag does not name {policy}")
    if found:
        raise ReleaseError("; ".join(found))
    return wheel


def main(arguments: list[str] | None = None) -> int:
    """Make a release's files and print their names; exit status 1 when something must not be published."""
    parser = argparse.ArgumentParser(description="Repair, check and list what is published")
    parser.add_argument("dist", type=Path, help="folder with wheels and sdists")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="an empty folder")
    parser.add_argument("--policy", default=POLICY, help=f"oldest systems (default: {POLICY})")
    options = parser.parse_args(arguments)
    try:
        for each in release(options.dist, options.to, options.policy):
            print(each)
    except (ReleaseError, ValueError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
