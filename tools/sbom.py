# SPDX-License-Identifier: Apache-2.0
"""Bills of materials in CycloneDX's JSON: `python tools/sbom.py WHEEL... [--to FOLDER]`.

One for each wheel, beside it or in a folder: the wheel with its digest, what it asks for at run time, and
what of others' is compiled into its libraries, which is looked for in them.
"""

from __future__ import annotations

import argparse
import email.parser
import hashlib
import json
import sys
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["BUNDLED", "Bundled", "bundled_in", "sbom", "write"]

SPEC_VERSION = "1.6"
NAMESPACE = uuid.UUID("6f1e5cda-2a3e-5b0c-9d0a-7a4d0f0b7c11")
"""For serial numbers: equal wheels have equal bills."""


@dataclass(frozen=True)
class Bundled:
    """Somebody else's code inside a wheel.

    Attributes:
        name: what it is called.
        licence: an SPDX identifier, or a name where there is none.
        marks: bytes of which a library that holds it has at least one.
        purl: where it comes from; empty where no package index has it.
        text: file of its licence in the wheel's ``licenses`` folder, which it asks for; empty if it does not.
        spdx: whether ``licence`` is SPDX's.
    """

    name: str
    licence: str
    marks: tuple[bytes, ...]
    purl: str = ""
    text: str = ""
    spdx: bool = True


BUNDLED: tuple[Bundled, ...] = (
    Bundled("pybind11", "BSD-3-Clause", (b"pybind11_object",), "pkg:pypi/pybind11", "LICENSES/pybind11.txt"),
    # Linked statically; NVIDIA's terms let programs carry it (CUDA EULA, attachment A).
    Bundled("cudart_static", "NVIDIA CUDA Toolkit EULA", (b".nv_fatbin",), spdx=False),
)


def bundled_in(library: bytes) -> list[Bundled]:
    """Return what of others' a shared library holds."""
    return [each for each in BUNDLED if any(mark in library for mark in each.marks)]


def component(name: str, version: str, kind: str, reference: str, **more: Any) -> dict[str, Any]:
    """Return one component; an empty version is left out."""
    found = {"type": kind, "bom-ref": reference, "name": name}
    return found | ({"version": version} if version else {}) | more


def licences(text: str, *, spdx: bool) -> list[dict[str, Any]]:
    """Return a licence as CycloneDX has it."""
    return [{"license": {"id" if spdx else "name": text}}]


def sbom(wheel: Path) -> dict[str, Any]:
    """Return the bill of one wheel. Raises ValueError for a file that is no wheel of this project."""
    data = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = [name for name in names if name.endswith(".dist-info/METADATA")]
        if len(metadata) != 1:
            raise ValueError(f"{wheel.name}: has {len(metadata)} METADATA files, expected one")
        facts = email.parser.BytesParser().parsebytes(archive.read(metadata[0]))
        libraries = [archive.read(name) for name in names if name.endswith(".so")]
    name, version = canonicalize_name(facts["Name"]), facts["Version"]
    reference = f"pkg:pypi/{name}@{version}"
    found: dict[str, Bundled] = {each.name: each for library in libraries for each in bundled_in(library)}
    for each in found.values():
        if each.text and not any(entry.endswith(f".dist-info/licenses/{each.text}") for entry in names):
            raise ValueError(f"{wheel.name}: holds {each.name} and not its licence, {each.text}")
    digest = hashlib.sha256(data).hexdigest()
    asked = [Requirement(text) for text in facts.get_all("Requires-Dist") or []]
    needed = sorted({canonicalize_name(each.name): each for each in asked if each.marker is None}.items())
    parts = [
        component(
            each.name,
            "",
            "library",
            f"{reference}#{each.name}",
            licenses=licences(each.licence, spdx=each.spdx),
            scope="required",
            **({"purl": each.purl} if each.purl else {}),
        )
        for each in found.values()
    ]
    others = [
        component(
            other,
            "",
            "library",
            f"pkg:pypi/{other}",
            purl=f"pkg:pypi/{other}",
            properties=[{"name": "tutti:requirement", "value": str(requirement)}],
        )
        for other, requirement in needed
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "component": component(
                name,
                version,
                "library",
                reference,
                purl=reference,
                hashes=[{"alg": "SHA-256", "content": digest}],
                licenses=licences(facts["License-Expression"], spdx=True),
                components=parts,
                properties=[{"name": "tutti:file", "value": wheel.name}],
            )
        },
        "components": others,
        "dependencies": [
            {"ref": reference, "dependsOn": [each["bom-ref"] for each in [*parts, *others]]},
            *({"ref": each["bom-ref"], "dependsOn": []} for each in [*parts, *others]),
        ],
    }


def write(wheel: Path, folder: Path) -> Path:
    """Write the bill of a wheel and return its file."""
    target = folder / f"{wheel.name.removesuffix('.whl')}.cdx.json"
    target.write_text(json.dumps(sbom(wheel), indent=1) + "\n", encoding="utf-8")
    return target


def main(arguments: list[str] | None = None) -> int:
    """Write a bill for each named wheel; exit status 1 when one cannot be made."""
    parser = argparse.ArgumentParser(description="Bills of materials of wheels, in CycloneDX's JSON")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--to", type=Path, help="folder for the bills (default: beside each wheel)")
    options = parser.parse_args(arguments)
    code = 0
    for wheel in options.wheels:
        try:
            print(write(wheel, options.to or wheel.parent))
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            print(f"sbom: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
