"""List of run folders, and lookup of a run by name, id prefix or path."""

from __future__ import annotations

import os
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.errors import NoSuchRun, SharedRunFolderWarning, StoreError
from otel_mlperf.ids import safe_name
from otel_mlperf.run_files.run_file import RUN_FILE, RunFile, describe_sharing, read_run_file

if TYPE_CHECKING:
    from collections.abc import Mapping

DIR_VARIABLE = "OTEL_MLPERF_DIR"
DEFAULT_DIR = "otel-runs"
LATEST = "latest"
_LISTED = 5
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class RunFolder(msgspec.Struct, frozen=True):
    """Run folder with the content of the folder's ``run.json``."""

    path: Path
    facts: RunFile

    @property
    def short_id(self) -> str:
        """Short run id: eight characters of a UUID, otherwise the id in the folder's name."""
        if _UUID.fullmatch(self.facts.id):
            return self.facts.id[:8]
        before = safe_name(self.facts.name) + "-"
        if self.path.name.startswith(before):
            return self.path.name[len(before) :]
        return self.facts.id[:4]


def runs_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the parent folder of all run folders: ``$OTEL_MLPERF_DIR``, else ``./otel-runs``."""
    return Path(environ.get(DIR_VARIABLE) or DEFAULT_DIR)


def list_runs(folder: Path) -> list[RunFolder]:
    """Return the runs in ``folder``, newest first; unreadable runs are skipped."""
    return scan_runs(folder)[0]


def scan_runs(folder: Path) -> tuple[list[RunFolder], dict[str, StoreError]]:
    """Return the runs in ``folder``, newest first, and errors of unreadable runs by folder name.

    Runs of wrapper programs, which only started another program, are omitted, because the started
    program has its own run.
    """
    runs: list[RunFolder] = []
    bad: dict[str, StoreError] = {}
    for path in sorted(folder.glob(f"*/{RUN_FILE}")):
        try:
            run = read_run(path.parent)
            if not run.facts.is_wrapper:
                runs.append(run)
        except StoreError as error:
            bad[path.parent.name] = error
    runs.sort(key=lambda run: (run.facts.started_ns, run.path.name), reverse=True)
    return runs, bad


def read_run(path: Path) -> RunFolder:
    """Read the run in the folder ``path``.

    Raises:
        StoreError: ``run.json`` is unreadable or from a newer version; or neither the path nor the
            path relative to the current folder is UTF-8.
    """
    if not _is_utf8(path):  # DuckDB and JSON accept only text
        path = Path(os.path.relpath(path))
        if not _is_utf8(path):
            raise StoreError(
                f"reading the run in {path}: the path is not UTF-8; change to the parent folder"
            )
    return RunFolder(path, read_run_file(path))


def _is_utf8(path: Path) -> bool:
    return os.fsencode(path).decode("utf-8", "replace") == str(path)


def find_run(run: str = LATEST, folder: Path | None = None) -> RunFolder:
    """Return a run by path, ``latest``, name or id prefix; by name, the newest run with this name.

    Runs are searched in ``folder`` (None: ``runs_dir()``). Warns if other users can change the
    run's folder.

    Raises:
        NoSuchRun: no run matches, or several ids match.
        StoreError: the folder named by ``run`` is unreadable.
    """
    found = _find(run, folder)
    if sentence := describe_sharing(found.path):
        warnings.warn(sentence, SharedRunFolderWarning, stacklevel=2)
    return found


def _find(run: str, folder: Path | None) -> RunFolder:
    if os.path.isfile(os.path.join(run, RUN_FILE)):
        return read_run(Path(run))
    folder = runs_dir() if folder is None else folder
    runs, bad = scan_runs(folder)
    if run in bad:
        raise bad[run]
    if runs and run == LATEST:
        return runs[0]
    named = [
        candidate
        for candidate in runs
        if run in (candidate.path.name, candidate.facts.name, candidate.facts.id)
    ]
    if named:
        return named[0]
    matching = _with_id_prefix(runs, run)
    if len(matching) > 1:
        raise NoSuchRun(
            f"looking for run {run!r}: {len(matching)} ids start with this text; use a longer "
            "prefix:" + _listing(matching, whole_ids=True)
        )
    if not matching:
        raise NoSuchRun(_not_found(run, folder, runs))
    return matching[0]


def _with_id_prefix(runs: list[RunFolder], start: str) -> list[RunFolder]:
    """Return the run with short id ``start`` if exactly one has it, else all with the id prefix."""
    shown = [run for run in runs if run.short_id == start]
    if len(shown) == 1:
        return shown
    return [run for run in runs if run.facts.id.startswith(start) or run.short_id == start]


def _not_found(run: str, folder: Path, runs: list[RunFolder]) -> str:
    if run != LATEST and os.path.exists(run):
        kind = "folder without run.json" if os.path.isdir(run) else "file"
        return (
            f"looking for run {run!r}: found a {kind}, not a run; pass a run's name, id or folder"
        )
    if not runs:
        return _nothing(run, folder)
    return (
        f"looking for run {run!r} in {folder}: no run has this name, id or path; "
        "the newest runs are:" + _listing(runs)
    )


def _nothing(run: str, folder: Path) -> str:
    reason = "the folder contains no runs" if folder.is_dir() else "the folder does not exist"
    return (
        f"looking for run {run!r} in {folder}: {reason}; change to the folder where the run was "
        f"started, set {DIR_VARIABLE}, or pass the path of a run folder"
    )


def _listing(runs: list[RunFolder], *, whole_ids: bool = False) -> str:
    lines = [
        f"\n  {run.facts.id if whole_ids else run.short_id}  {run.facts.name}  "
        f"{time.strftime('%d %b %H:%M', time.localtime(run.facts.started_ns / 1e9))}"
        for run in runs[:_LISTED]
    ]
    return "".join(lines)
