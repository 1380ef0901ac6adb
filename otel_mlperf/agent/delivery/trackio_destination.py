"""Destination that writes points to trackio's inbox, each point once, without trackio's library.

The inbox is a folder of files. trackio's dashboard imports the files into its database and removes
them. Each batch is one file. The file name and the record ids are derived from the batch. An agent
that repeats a batch therefore replaces the file, and trackio skips records that it already has. The
page of the run is stored among the files of its project, like files from ``trackio.save``.

Format: trackio's ``fragments.py``, ``FRAGMENT_VERSION`` 1 (since 0.28), and ``project_media_dir``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.agent.delivery.destination import Delivered, Destination, TryLater
from otel_mlperf.agent.delivery.tracker_curves import curve_of, json_safe_number, rank_of, rows_of
from otel_mlperf.errors import StoreError
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.run_files.run_file import read_run_file
from otel_mlperf.settings.tracker_list import TRACKIO, trackio_folder
from otel_mlperf.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Verdict
    from otel_mlperf.agent.delivery.tracker_curves import Named
    from otel_mlperf.agent.model.scalar_item import ScalarItem
    from otel_mlperf.run_files.run_file import RunFile

_VERSION: Final = 1
_LEVELS: Final = {"critical": "error", "warning": "warn", "info": "info"}
_OF_FINDINGS: Final = {rule.id: _LEVELS[rule.severity] for rule in RULES}
_OF_ENDS: Final = {"interrupted": "warn", "killed": "error", "failed": "error"}
_TRIES: Final = 3


class TrackioDestination(Destination):
    """Destination for the files of one host and run in trackio's folder."""

    name = TRACKIO

    def __init__(self, site: DestinationContext, folder: Path) -> None:
        self._run_folder, self._host, self._folder = site.run_folder, site.host, folder
        self.signals = ("scalars", "reports") if site.options.tracker_report else ("scalars",)
        self._project = site.options.environ.get("TRACKIO_PROJECT", "").strip()

    def accept(self, batch: Batch) -> Verdict:
        """Write the batch's points, or the page of the run, as one file."""
        try:
            facts = read_run_file(self._run_folder)
            if batch.signal == "reports":
                _put(self._page(facts), batch.report)
            else:
                lines = [*map(msgspec.json.encode, self._records(batch, facts)), b""]
                _put(self._batch(batch, facts), b"\n".join(lines))
        except OSError as error:
            return TryLater(f"writing {error.filename or self._folder}: {error.strerror}")
        except StoreError as error:
            return TryLater(f"reading the run folder: {error}")
        return Delivered()

    def _batch(self, batch: Batch, facts: RunFile) -> Path:
        writer = f"otel-mlperf-{facts.id}-{facts.started_ns}-{self._host}"
        return self._folder / "inbox" / writer / f"{batch.number:010d}.jsonl"

    def _page(self, facts: RunFile) -> Path:
        named = self._project or facts.name
        project = "".join(c for c in named if c.isalnum() or c in "-_") or "default"
        return self._folder / "media" / project / "files" / self._run_folder.name / "report.html"

    def _records(self, batch: Batch, facts: RunFile) -> Iterator[dict[str, Any]]:
        named = [
            (curve_of(scalar, batch, is_alone=facts.world_size == 1), scalar)
            for scalar in batch.scalars
        ]
        readings = [pair for pair in named if pair[1].kind == "reading"]
        remaining = [pair for pair in named if pair[1].kind != "reading"]
        run = {
            "v": _VERSION,
            "project": self._project or facts.name,
            "run": facts.name,
            "run_id": facts.id,
        }
        # Includes the start time, because another run with the same id also numbers its batches
        # from 1.
        place = f"{facts.id}/{facts.started_ns}/{self._host}/{batch.number}"
        yield from _metrics(run, place, remaining, _config(facts))
        yield from _system_metrics(run, place, readings)
        yield from _alerts(run, place, batch)


def _metrics(
    run: Mapping[str, Any], place: str, named: list[Named], config: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for n, (number, time_ns, values) in enumerate(rows_of(named)):
        yield {
            **run, "kind": "metric", "step": number, "timestamp": _time(time_ns),
            "metrics": _finite(values), "config": None if n else config, "log_id": f"{place}/m{n}",
        }  # fmt: skip


def _system_metrics(
    run: Mapping[str, Any], place: str, named: list[Named]
) -> Iterator[dict[str, Any]]:
    for n, (_, time_ns, values) in enumerate(rows_of(named)):
        yield {
            **run, "kind": "system_metric", "timestamp": _time(time_ns),
            "metrics": _finite(values), "log_id": f"{place}/s{n}",
        }  # fmt: skip


def _alerts(run: Mapping[str, Any], place: str, batch: Batch) -> Iterator[dict[str, Any]]:
    for n, scalar in enumerate(batch.scalars):
        level = _level_of(scalar)
        if level:
            is_end = scalar.kind == "outcome"
            owner = rank_of(scalar, batch)
            title = f"{owner} {scalar.text}" if is_end else f"{scalar.name} ({owner})"
            yield {
                **run, "kind": "alert", "title": title, "text": None if is_end else scalar.text,
                "level": level, "step": scalar.number, "timestamp": _time(scalar.time_ns),
                "alert_id": f"{place}/a{n}",
            }  # fmt: skip


def _level_of(scalar: ScalarItem) -> str:
    if scalar.kind == "finding":
        return _OF_FINDINGS[scalar.name]
    return _OF_ENDS.get(scalar.text, "") if scalar.kind == "outcome" else ""


def _config(facts: RunFile) -> dict[str, Any]:
    params = {f"params.{k}" if k.startswith("_") else k: v for k, v in facts.params.items()}
    tags = {"tags": facts.tags} if facts.tags else {}
    return {**tags, **params, "_Created": _time(facts.started_ns)}


def _finite(values: Mapping[str, float]) -> dict[str, float | str]:
    return {name: json_safe_number(value) for name, value in values.items()}


def _time(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="microseconds")


def _put(path: Path, content: bytes) -> None:
    for retries in reversed(range(_TRIES)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return write_whole(path, content, is_durable=True)
        except FileNotFoundError:  # trackio has removed the empty folder after an import
            if not retries:
                raise
    return None


def make(site: DestinationContext) -> TrackioDestination:
    """Create the destination for the folder that trackio's environment variables name."""
    return TrackioDestination(site, Path(trackio_folder(site.options.environ)))
