# SPDX-License-Identifier: Apache-2.0
"""``tutti export`` and ``tutti import``: chunks of one store as one file, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tutti_engine.catalogue.file import MAX_KEY_BYTES
from tutti_engine.cli.answers import (
    Exit,
    JsonOption,
    NamespaceOption,
    RootsArgument,
    as_bytes,
    console,
    one_line_errors,
    plain,
    print_json,
    progress,
)
from tutti_engine.cli.verify import formula_of
from tutti_engine.errors import ArchiveError, TuttiError
from tutti_engine.movers.formulas import Checksum, find_checksum
from tutti_engine.store.archive import ArchiveHeader, ArchiveReader
from tutti_engine.store.exporting import ExportReport, export, select
from tutti_engine.store.facts import StoreFacts, choose, find_stores
from tutti_engine.store.importing import (
    ImportReport,
    capacity_of,
    check_fits,
    check_keeps,
    choose_target,
    import_chunks,
    open_target,
    rehearse,
)

__all__ = ["export_store", "import_file"]

ChecksumOption = Annotated[
    str | None, typer.Option("--checksum", help="The checksum's name, where the store does not say it.")
]


def export_store(
    roots: RootsArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write.")],
    namespace: NamespaceOption = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only chunks with these keys: a file with one in hex a line, or -."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    checksum: ChecksumOption = None,
    json: JsonOption = False,
) -> None:
    """Write a store's chunks, or some of them, to one file. Safe beside a running server.

    Exit code: 0 when all that was asked for is in the file, 1 when chunks were damaged or keys not there,
    2 when there is no file.
    """
    with one_line_errors("export"):
        stores = find_stores(roots)
        store = choose(stores, namespace or (stores[0].name if len(stores) == 1 else ""))
        formula = formula_of(store, checksum)
        wanted = select(store, None if keys is None else read_keys(keys))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with progress(*columns) as bar:
            task = bar.add_task(f"{store.name[:8]} chunks", total=len(wanted.slots))
            report = export(
                store, wanted, formula, to, replace=force, on_progress=lambda count: bar.advance(task, count)
            )
    if json:
        print_json(export_document(store, to, report))
    else:
        show_export(store, to, report)
    raise typer.Exit(Exit.FOUND if report.damaged or report.absent else Exit.OK)


def read_keys(path: Path) -> list[bytes]:
    """Return the keys of a file, - for standard input. Raises ArchiveError that names the line."""
    lines = (sys.stdin.read() if str(path) == "-" else path.read_text("ascii", "replace")).splitlines()
    keys = []
    for number, line in enumerate(lines, 1):
        try:
            key = bytes.fromhex(line)
        except ValueError:
            key = bytes(MAX_KEY_BYTES + 1)
        if len(key) > MAX_KEY_BYTES:
            raise ArchiveError(f"line {number} of {path} is no key in hex: {line[:80]!r}")
        if key:
            keys.append(key)
    if not keys:
        raise ArchiveError(f"{path} has no keys")
    return keys


def export_document(store: StoreFacts, to: Path, report: ExportReport) -> dict[str, Any]:
    """Return what was written for JSON."""
    return {
        "name": store.name,
        "file": str(to),
        "file_bytes": report.file_bytes,
        "chunks": report.written,
        "data_bytes": report.data_bytes,
        "changed": report.changed,
        "damaged": report.damaged,
        "absent": report.absent,
    }


def show_export(store: StoreFacts, to: Path, report: ExportReport) -> None:
    """Print what was written."""
    text = f"{store.name}: {report.written:,} chunks, {as_bytes(report.file_bytes)} in {to}"
    for count, what in (
        (report.damaged, "damaged and left out (see tutti verify)"),
        (report.absent, "keys not there"),
        (report.changed, "changed meanwhile and left out"),
    ):
        text += f"; {count:,} {what}" if count else ""
    console().print(plain(text), soft_wrap=True)


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What tutti export wrote.")],
    roots: RootsArgument,
    namespace: NamespaceOption = None,
    capacity_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="As the server's setting; needed for a new store and beside others."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the file and say what would be.")
    ] = False,
    checksum: ChecksumOption = None,
    json: JsonOption = False,
) -> None:
    """Put the chunks of a file into their store, as far as it has free places. No server may have it open.

    Exit code: 0 when all chunks are in the store now, 1 when some were damaged or had no room, 2 when it
    could not be done; what was imported until then stays.
    """
    report = ImportReport()
    with one_line_errors("import"), told_with(file, report):
        with ArchiveReader.open(file) as archive:
            header = archive.header
        formula = formula_of_file(header, checksum)
        store = choose_target(find_stores(roots), header, namespace)
        if store is not None:
            check_fits(store, header)
            if capacity_bytes is not None:
                check_keeps(store, header, capacity_bytes)
            capacity_bytes = capacity_bytes or (None if dry_run else capacity_of(store, header))
        elif capacity_bytes is None and not dry_run:
            raise ArchiveError(
                f"no store of its namespace {header.namespace.digest} is in these roots: give"
                " --capacity-bytes to make it, as the server's settings have it"
            )
        with ArchiveReader.open(file) as archive, bytes_bar("checking", archive.size) as advance:
            if capacity_bytes is None or dry_run:
                rehearse(archive, store, formula, report, advance)
            else:
                archive.check(advance)
        if capacity_bytes is not None and not dry_run:
            with (
                ArchiveReader.open(file) as archive,
                open_target(roots, store, header, capacity_bytes) as target,
                bytes_bar("importing", archive.size) as advance,
            ):
                import_chunks(archive, target, formula, report, advance)
    name = header.namespace.digest if store is None else store.name
    if json:
        print_json(import_document(name, dry_run, report))
    else:
        show_import(name, dry_run, report)
    raise typer.Exit(Exit.FOUND if report.damaged or report.no_room else Exit.OK)


@contextmanager
def told_with(file: Path, report: ImportReport) -> Iterator[None]:
    """Add to an error which file it was, and what is in the store all the same."""
    try:
        yield
    except (TuttiError, OSError) as error:
        done = f" (after {report.imported} chunks, which are in the store)" if report.imported else ""
        raise ArchiveError(f"{file}: {error}{done}") from error


@contextmanager
def bytes_bar(what: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; call what is given with how many more bytes are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress(*columns) as bar:
        task = bar.add_task(what, total=size)
        yield lambda count: bar.advance(task, count)


def formula_of_file(header: ArchiveHeader, wanted: str | None) -> Checksum:
    """Return the formula of a file's checksums. Raises ArchiveError when nobody says which it is."""
    name = wanted or header.facts.get("checksum")
    if not isinstance(name, str):
        raise ArchiveError("it does not say which checksum it has; give --checksum")
    return find_checksum(name)


def import_document(name: str, dry_run: bool, report: ImportReport) -> dict[str, Any]:
    """Return what was imported for JSON."""
    return {
        "name": name,
        "dry_run": dry_run,
        "chunks": report.chunks,
        "imported": report.imported,
        "present": report.present,
        "damaged": report.damaged,
        "no_room": report.no_room,
    }


def show_import(name: str, dry_run: bool, report: ImportReport) -> None:
    """Print what was imported."""
    verb = "would be imported" if dry_run else "imported"
    text = f"{name}: {report.imported:,} of {report.chunks:,} chunks {verb}"
    for count, what in (
        (report.present, "there already"),
        (report.damaged, "damaged and left out"),
        (report.no_room, "without a free place (a larger --capacity-bytes has more)"),
    ):
        text += f"; {count:,} {what}" if count else ""
    console().print(plain(text), soft_wrap=True)
