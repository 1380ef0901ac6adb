"""What do programs that put loads on the recorder share?

Each starts ``job.py`` with otel_mlperf, then with the OpenTelemetry SDK, against a server on
loopback that writes down every id, and prints a row for each.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from fault_server import FaultServer  # noqa: E402 - found by the line above
from load import job  # noqa: E402
from runs import Ended, agent_of, ending, environment  # noqa: E402

from otel_mlperf import names  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALL_KEPT = {
    "OTEL_MLPERF_TRACE_EVERY": "1",
    "OTEL_MLPERF_MAX_SPANS_PER_RANK": str(10**7),
    "OTEL_MLPERF_MAX_SPANS_PER_TRACE": str(10**8),
    # A collection of garbage that takes long would be a span beside those that are counted.
    "OTEL_MLPERF_DISABLED_READINGS": "gc",
}
HEAD = (
    "load", "with", "made", "arrived", "measured only", "lost or waiting, counted",
    "lost, uncounted", "p99 of a call", "end takes", "job grows by", "agent has",
)  # fmt: skip
MIB = 1 << 20


class Memory(threading.Thread):
    """How much memory the agent of a run takes, looked at every half second."""

    def __init__(self, runs: Path) -> None:
        super().__init__(daemon=True)
        self.seen_bytes: list[int] = []
        self._runs, self._ended = runs, threading.Event()

    def run(self) -> None:
        agent = None
        while not self._ended.wait(0.5):
            agent = agent or agent_of(self._runs)
            try:
                self.seen_bytes += [psutil.Process(agent).memory_info().rss] if agent else []
            except psutil.Error:
                agent = None

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Under:
    """One recorder under one load: its processes, what they made and what became of it."""

    recorder: str
    folder: Path
    endpoint: str
    variables: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    end_s: float = 0.0
    codes: list[int] = field(default_factory=list)
    beside: int = 0
    """Spans that the agent has made of its own."""

    def __post_init__(self) -> None:
        self.runs = self.folder / "runs"
        self.memory = Memory(self.runs)
        self.memory.start()

    def start(
        self, *arguments: str, inside: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        """One more job, whose truth lies in a file of its own; ``inside`` of what a command is."""
        truth = self.folder / f"{len(self.processes)}.truth"
        command = [*inside, sys.executable, str(Path(job.__file__)), "--recorder", self.recorder]
        server = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}
        given = server | ALL_KEPT | self.variables | variables
        with (self.folder / "errors.txt").open("ab") as errors:
            process = subprocess.Popen(
                [*command, "--truth", str(truth), *arguments],
                env=environment(self.runs, **given),
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def wait(self) -> None:
        """Until every job has ended; how long that took from the end of its work."""
        for number, process in enumerate(self.processes):
            self.codes.append(process.wait())
            took_ns = time.monotonic_ns() - self._words(number)[job.ENDED_NS]
            self.end_s = max(self.end_s, took_ns / 1e9)

    def settle(self) -> None:
        """Until the agent has gone; the SDK has none."""
        if self.recorder == "ours":
            Ended(0, "", "", self.runs, self.folder).settled()
        self.memory.end()

    @property
    def counted(self) -> int:
        """Spans that the jobs have ended, as they have counted them themselves."""
        return sum(sum(self._words(n)[job.FIRST :]) for n in range(len(self.processes)))

    @property
    def made(self) -> int:
        """The same, and of ours the run of each job."""
        runs = len(self.processes) if self.recorder == "ours" else 0
        return self.counted + runs + self.beside

    @property
    def account(self) -> dict[str, Any]:
        """What became of the spans of ours on their way to the server."""
        return Ended(0, "", "", self.runs, self.folder).accounts()["spans"]["otlp"]

    def row(self, load: str, arrived: int) -> list[str]:
        """The row of the table."""
        measured = counted = 0
        if self.recorder == "ours":
            account = self.account
            measured = account["unselected"] + account["rolled_up"]
            counted = sum(account["lost"].values()) + account["pending"]
        longest_ns = max(self._words(n)[job.P99_NS] for n in range(len(self.processes)))
        grown = max(self._words(n)[job.GROWN_BYTES] for n in range(len(self.processes)))
        agent = max(self.memory.seen_bytes, default=0)
        return [
            load, {"ours": "otel_mlperf", "sdk": "SDK"}[self.recorder], f"{self.made:,}",
            f"{arrived:,}", f"{measured:,}", f"{counted:,}",
            f"{self.made - arrived - measured - counted:,}",
            f"{longest_ns / 1000:.1f} µs" if longest_ns else "",
            f"{self.end_s:.1f} s" if self.codes else "",
            f"{grown / MIB:.0f} MiB", f"{agent / MIB:.0f} MiB" if agent else "",
        ]  # fmt: skip

    def _words(self, number: int) -> tuple[int, ...]:
        with suppress(OSError, struct.error):  # not there yet, or not yet as long as it will be
            return struct.unpack(f"<{job.WORDS}Q", (self.folder / f"{number}.truth").read_bytes())
        return (0,) * job.WORDS


@contextmanager
def under(recorder: str, endpoint: str, **variables: str) -> Iterator[Under]:
    """A recorder that sends to ``endpoint``; no process of it is left behind."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        made = Under(recorder, Path(folder), endpoint, variables)
        stack.callback(made.memory.end)
        with ending(made.processes):
            yield made


@contextmanager
def server() -> Iterator[FaultServer]:
    """One that writes down the ids of all that it accepts."""
    with tempfile.TemporaryDirectory() as folder, FaultServer(Path(folder), ids_only=True) as made:
        yield made


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    command = [sys.executable, "-c", "while True: pass"]
    with ending([subprocess.Popen(command) for _ in range(count)]):
        yield


def arrived(sink: FaultServer) -> int:
    """How many spans the server has, each counted once."""
    return len(set(sink.ids()))


def made_by_agent(one: Any) -> int:
    """Finished children of a run that is open for long, and findings: the program made none."""
    sql = (
        f"SELECT count(*) AS n FROM spans WHERE attributes LIKE '%{names.SEGMENT_OF}%' "
        f"OR name = '{names.SPAN_FINDING}'"
    )
    (row,) = Ended(0, "", "", one.runs, one.folder).rows(sql)
    return int(row["n"])


def show(*rows: list[str]) -> None:
    """The table, and how busy the machine was meanwhile."""
    for cells in (HEAD, ["---", "---", *["---:"] * (len(HEAD) - 2)], *rows):
        print(f"| {' | '.join(cells)} |")
    load = os.getloadavg()[0]
    print(f"\n{os.cpu_count()} processors, load of the last minute {load:.1f}", flush=True)


def stop_for(process_id: int, seconds: float) -> None:
    """A process that gets no processor for a while, and goes on."""
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process_id, signal.SIGCONT)
