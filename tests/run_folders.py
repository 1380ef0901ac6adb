"""Builder of run folders with known content: real Parquet, through the store's writer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth, append_growth
from otel_mlperf.run_files.hot_file import HotSpot, ProfiledCall, append_call
from otel_mlperf.store.part_writer import write_part
from otel_mlperf.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
S = 1_000_000_000
START = 1_760_000_000 * S
"""When every built run starts."""
RUN_ID = "3f2a9c0d17e84b55"


class RunFolderBuilder:
    """Rows of a run, most fields by default, written by ``write()``."""

    def __init__(
        self, runs: Path, name: str = "digits", run_id: str = RUN_ID, **facts: Any
    ) -> None:
        self.path = runs / f"{name}-{run_id[:4]}"
        self._facts = {"id": run_id, "name": name, "started_ns": START} | facts
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        self._accounts: dict[str, Any] = {}
        self._profiled: list[ProfiledCall] = []
        self._grown: list[MemoryGrowth] = []

    def process(self, end: int = 0, outcome: str = "finished", **fields: Any) -> None:
        """A process from START on; ``end`` in ns after it, 0 while it runs."""
        row = {
            "rank": 0,
            "restart": 0,
            "local_rank": fields.get("rank", 0),
            "world_size": 1,
            "pid": 100 + fields.get("rank", 0),
            "host": "node1",
            "service": self._facts["name"],
            "start_ns": START,
            "end_ns": START + end if end else 0,
            "outcome": outcome,
            "error_type": "",
            "error_message": "",
            "error_step": None,
            "error_section": "",
            "result": "{}",
            "sections": 0,
            "overhead_ns": 0,
            "instance_id": "c0ffee00-0000-5000-8000-000000000000",
            "has_gpu": False,
        }
        self._rows["processes"].append(row | fields)

    def step(self, n: int, at: int, sections: dict[str, int], own: int = 0, **fields: Any) -> None:
        """Step ``n``, beginning ``at`` ns after START; self time of each section inside it."""
        duration = sum(sections.values()) + own
        row = {
            "rank": 0,
            "restart": 0,
            "phase": "train",
            "n": n,
            "number": n,
            "epoch": None,
            "start_ns": START + at,
            "end_ns": START + at + duration,
            "duration_ns": duration,
            "self_ns": own,
            "samples": None,
            "tokens": None,
            "elements": None,
            "error": False,
            "kept": None,
            "trace_id": f"{n + 1:032x}",
        } | fields
        self._rows["steps"].append(row)
        for name, spent in sections.items():
            self.section(row, name, spent, start_ns=START + at)
            at += spent

    def section(self, step: dict[str, Any] | None, name: str, spent: int, **fields: Any) -> None:
        """A section of ``step``, or outside any with ``path``."""
        step = step or {"rank": 0, "restart": 0, "phase": "", "n": None, "number": None}
        self._rows["sections"].append(
            {key: step[key] for key in ("rank", "restart", "phase", "n", "number")}
            | {
                "name": name,
                "category": CATEGORIES.get(name, "other"),
                "parent": "",
                "path": "",
                "beside": False,
                "aggregate": False,
                "count": 1,
                "sum_ns": spent,
                "self_ns": spent,
                "min_ns": spent,
                "max_ns": spent,
                "start_ns": START,
            }
            | fields
        )

    def outside(self, path: str, spent: int, **fields: Any) -> None:
        """A section outside steps by its path."""
        self.section(None, path.rpartition("/")[2], spent, path=path, **fields)

    def span(self, n: int | None, name: str, at: int, spent: int, **fields: Any) -> str:
        """A kept span of step ``n``, None of none, ``at`` ns after START; returns its id."""
        number = len(self._rows["spans"]) + 1
        row = {
            "rank": 0,
            "restart": 0,
            "trace_id": f"{(n or 0) + 1:032x}",
            "span_id": f"{number:016x}",
            "parent_id": "",
            "name": name,
            "category": CATEGORIES.get(name, "other"),
            "phase": "train",
            "track": 100,
            "thread": "MainThread",
            "thread_id": 4242,
            "start_ns": START + at,
            "end_ns": START + at + spent,
            "status": "unset",
            "interrupted": False,
            "root_id": f"{number:016x}",
            "n": n,
            "number": n,
            "epoch": None,
            "kept": "first",
            "attributes": "{}",
            "links": "[]",
            "kind": "section",
        } | fields
        self._rows["spans"].append(row)
        return str(row["span_id"])

    def row(self, table: str, **fields: Any) -> None:
        """A row as it is."""
        self._rows[table].append(fields)

    def mark(self, name: str, at: int, number: int, **fields: Any) -> None:
        """A point that the program marked ``at`` ns after START."""
        row = {"rank": 0, "restart": 0, "phase": "train", "name": name, "number": number}
        self.row("marks", **(row | {"time_ns": START + at} | fields))

    def profiled(self, section: str, *spots: HotSpot, **fields: Any) -> None:
        """A call of a section into which a profiler looked."""
        about = {"category": "", "phase": "train", "kind": "calls", "rank": 0, "restart": 0}
        call = ProfiledCall(section=section, spots=list(spots), unix_ns=START, **(about | fields))
        self._profiled.append(call)

    def grown(self, *rows: GrowthRow, **fields: Any) -> None:
        """What memory had grown between two points."""
        times = {"begin_ns": START, "end_ns": START + S}
        self._grown.append(MemoryGrowth(rows=list(rows), **(times | fields)))

    def accounting(self, **signals: Any) -> None:
        """What the agent of ``node1`` counted."""
        self._accounts |= signals

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of the steps so far."""
        return self._rows["steps"]

    def write(self) -> Path:
        """Writes the folder and returns its path."""
        self.path.mkdir(parents=True)
        (self.path / "run.json").write_text(json.dumps(self._facts))
        for table, rows in self._rows.items():
            if rows:
                columns = {name: [row[name] for row in rows] for name in rows[0]}
                write_part(self.path, table, "node1", 1, columns)
        for call in self._profiled:
            append_call(str(self.path), 100 + call.rank, call)
        for growth in self._grown:
            append_growth(str(self.path), 100 + growth.rank, growth)
        if self._accounts:
            folder = self.path / "accounting"
            folder.mkdir()
            (folder / "node1.json").write_text(json.dumps(self._accounts))
        return self.path


CATEGORIES = {
    "data.load": "data_loading",
    "gc.collect": "garbage_collection",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "train.epoch": "epoch",
    "validate": "phase",
    "checkpoint": "checkpoint",
    "compile": "compile",
    "all_reduce": "communication",
    "barrier": "communication",
}


def digits(runs: Path) -> RunFolderBuilder:
    """A finished run of 40 steps in two epochs, with validation, checkpoints and a slow step."""
    run = RunFolderBuilder(runs)
    at = 400 * MS
    run.outside("load_data", 250 * MS, start_ns=START + 10 * MS)
    for n in range(40):
        forward = 300 * MS if n == 0 else 11 * MS
        wait = 95 * MS if n == 23 else 14 * MS + n * MS // 10
        parts = {"data.load": wait, "forward": forward, "backward": 16 * MS, "optimizer": 4 * MS}
        kept = "first" if n < 5 else "slow" if n == 23 else None
        run.step(n, at, parts, own=2 * MS, samples=64, kept=kept)
        at = run.steps[-1]["end_ns"] - START
        if n in (19, 39):
            run.outside("train.epoch/validate", 110 * MS, start_ns=START + at)
            run.outside("train.epoch/checkpoint", 40 * MS, start_ns=START + at + 110 * MS)
            at += 150 * MS
            run.outside("train.epoch", at - 400 * MS, self_ns=0, start_ns=START + 400 * MS)
    run.process(at + 20 * MS, result='{"accuracy": 0.9833}', overhead_ns=9 * MS)
    run.accounting(
        spans={"store": {"created": 200, "delivered": 40, "unselected": 160}},
        metrics={},
    )
    return run


def training(
    runs: Path, name: str, run_id: str, *, forward: int = 10, waiting: int = 1
) -> RunFolderBuilder:
    """A run of a hundred steps with these times in ms; its parameter ``width`` is ``forward``."""
    run = RunFolderBuilder(runs, name, run_id, params={"width": forward})
    for n in range(100):
        spent = {"data.load": waiting, "forward": forward + n % 7 / 10, "backward": 20}
        parts = {part: int(ms * MS) for part, ms in spent.items()}
        run.step(n, n * 80 * MS, parts, own=MS, samples=8)
    run.process(10 * S)
    return run
