"""A program written by hand: it records into a real journal that a real agent reads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow.parquet as pq

from otel_mlperf import names
from otel_mlperf.agent.lifecycle.node_folder import node_folder
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import OPEN, Flag, Kind
from otel_mlperf.journal.meta import JournalMeta

MS = 1_000_000
TRACK = 11


def agent_folder(meta: JournalMeta) -> Path:
    """Creates the folder in which the agent that reads a journal of ``meta`` works."""
    folder = node_folder(Path(meta.run_folder), meta.host)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


class Program:
    """Writes what a training process would, with times that the test chooses (ms)."""

    def __init__(
        self, folder: Path, run_folder: Path, rank: int = 0, world: int = 1,
        *, name: str = "", is_child: bool = False, host: str = "node",
    ) -> None:  # fmt: skip
        self.meta = JournalMeta(
            run_id="0123abcd", run_name="digits", run_folder=str(run_folder), service="digits",
            host=host, pid=1, rank=rank, local_rank=rank, world_size=world,
            run_span=1 + (rank << 32), monotonic_ns=0, unix_ns=1_700_000_000_000_000_000,
            cost_ns=1000, is_child=is_child,
        )  # fmt: skip
        self.journal = Journal(str(folder / f"{name or f'{rank}-1-1'}.journal"), 1 << 14, self.meta)
        self.journal.entry(["track", TRACK, 4242, "MainThread", False])
        self._ids = itertools.count(self.meta.run_span + (1 << 40 if is_child else 1))
        self._entries: dict[tuple[str, str], int] = {}
        self._n: dict[str, int] = {}
        self.run = self.meta.run_span
        self.journal.put(0, 0, self.run, 0, 0, TRACK, self.name("run", names.RUN, ""), Kind.BEGIN)
        self.sections = 0

    def name(self, name: str, category: str = "other", phase: str = "train") -> int:
        if (name, phase) not in self._entries:
            content = ["section", name, category, phase, {}]
            self._entries[name, phase] = self.journal.entry(content)
        return self._entries[name, phase]

    def section(
        self, name: str, start: float, end: float, *, parent: int = 0, root: int = 0,
        category: str = "other", phase: str = "train", track: int = TRACK, error: bool = False,
        payload: dict | None = None, span: int = 0, profiled: bool = False,
    ) -> int:  # fmt: skip
        span = span or next(self._ids)
        flags = Kind.SECTION | (Flag.ERROR if error else 0) | (Flag.PROFILED if profiled else 0)
        if payload:
            self.journal.payload(span, payload)
            flags |= Flag.HAS_PAYLOAD | (Flag.MEASURED if "u" in payload else 0)
        self.journal.put(
            int(start * MS), int(end * MS), span, parent or self.run, root or self.run, track,
            self.name(name, category, phase), flags,
        )  # fmt: skip
        self.sections += 1
        return span

    def pause(self, start: float, end: float, *, track: int = TRACK) -> int:
        """A collection of garbage, as the recorder writes it: it does not know where it fell."""
        span = next(self._ids)
        self.journal.put(
            int(start * MS), int(end * MS), span, 0, 0, track,
            self.name(names.SPAN_COLLECTION, names.GARBAGE_COLLECTION), Kind.SECTION | Flag.PAUSE,
        )  # fmt: skip
        self.sections += 1
        return span

    def begin_step(self, start: float, *, phase: str = "train", parent: int = 0) -> int:
        span, n = next(self._ids), self._n.get(phase, 0)
        self._n[phase] = n + 1
        self.journal.put(
            int(start * MS), n + 100, span, parent or self.run, n, TRACK,
            self.name(f"{phase}.step", names.STEP, phase), Kind.BEGIN,
        )  # fmt: skip
        return span

    def end_step(
        self, span: int, start: float, end: float, *, phase: str = "train", **more
    ) -> None:
        self.section(
            f"{phase}.step",
            start,
            end,
            span=span,
            root=span,
            category=names.STEP,
            phase=phase,
            **more,
        )

    def step(self, start: float, length: float = 10.0, *, phase: str = "train", **more) -> int:
        span = self.begin_step(start, phase=phase)
        wait, middle = start + length * 0.2, start + length * 0.9
        self.section("data.load", start, wait, parent=span, root=span, phase=phase,
                     category=names.DATA_LOADING)  # fmt: skip
        self.section("forward", wait, middle, parent=span, root=span, phase=phase,
                     category=names.FORWARD)  # fmt: skip
        self.end_step(span, start, start + length, phase=phase, **more)
        return span

    def open(
        self, name: str, start: float, *, parent: int = 0, root: int = 0, span: int = 0
    ) -> int:
        span = span or next(self._ids)
        at = self.journal.free.pop()
        OPEN.pack_into(
            self.journal.buffer, at, span, parent or self.run, root or self.run, TRACK,
            int(start * MS), self.name(name),
        )  # fmt: skip
        return span

    def stop(self, end: float, **more) -> None:
        self.section("run", 0, end, span=self.run, category=names.RUN, phase="", **more)
        self.journal.close()


def aggregate(
    name: str, enclosing: str, *, section: int = 0, path: str = "", inside: str = "",
    of_step: bool = False, beside: bool = False, since_ns: int = 0,
) -> list[object]:  # fmt: skip
    """The entry of an aggregated section."""
    place = [section, path, inside, of_step, beside, since_ns]
    return ["cell", "aggregate", name, "other", enclosing, "train", *place]


def table(run_folder: Path, name: str) -> list[dict]:
    """The rows of a table, in the order in which they were written."""
    rows: list[dict] = []
    for part in sorted((run_folder / "tables" / name).glob("*.parquet")):
        rows += pq.read_table(part).to_pylist()
    return rows


def accounts(run_folder: Path) -> dict:
    """By signal and destination, as the agent of the program's node wrote them."""
    return json.loads((run_folder / "accounting" / "node.json").read_text())


def adds_up(account: dict) -> bool:
    """Whether every item is accounted for."""
    outcomes = ("delivered", "rolled_up", "unselected", "pending")
    total = sum(account[key] for key in outcomes) + sum(account["lost"].values())
    return account["created"] == total
