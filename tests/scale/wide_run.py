"""Does a run of 4,096 ranks open: one step in Jaeger, and its folder by every command?

    python tests/scale/wide_run.py --ranks 4096

Journals are written by hand, with the real writer; each node has the real agent's loop, of which a
few run at once in as many processes, all into one run folder. Prints what Jaeger has of two steps,
and how long each command takes, with its memory and the size of what it says.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import urllib3

sys.path.insert(0, str(Path(__file__).parents[1]))

from by_hand import Program, agent_folder
from scale.collectors import Collectors
from servers.answers import jaeger_trace

from otel_mlperf import ids, names
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.run_files.run_file import write_run_file

NODE = 8
"""Ranks of a node."""
STEPS = 120
STEP_MS = 250.0
SECTIONS = {"forward": 0.3, "loss": 0.05, "backward": 0.4, "optimizer": 0.1}
AT_ONCE = 8
"""Agents; on two cores more are not faster."""
FAULTY = 20
FAILED, SLOW = 1, 2
"""Ranks whose step FAULTY fails, or takes three times as long."""
_CATEGORIES = {"forward": names.FORWARD, "backward": names.BACKWARD, "optimizer": names.OPTIMIZER}
_MIB = 1 << 20
_COMMANDS = (
    ["summary"],
    ["findings"],
    ["top", "--once"],
    ["show", "--step", str(100 + FAULTY)],
    ["show", "--step", "100"],
    ["report", "-o", "{folder}.html"],
    ["runs"],
)


def record_node(run_folder: str, number: int, world: int, endpoint: str) -> None:
    """The journals of one node's ranks, and an agent that reads them to their end."""
    first = number * NODE
    with tempfile.TemporaryDirectory(dir="/dev/shm") as journals:
        programs = [
            Program(Path(journals), Path(run_folder), rank, world, host=f"node{number}")
            for rank in range(first, min(first + NODE, world))
        ]
        for program in programs:
            _train(program)
        environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{endpoint}/v1/traces"}
        environ["OTEL_MLPERF_READINGS"] = "none"  # of this machine, 512 times
        own = {program.journal.path: program.journal.buffer for program in programs}
        Agent(
            agent_folder(programs[0].meta), Tail(Path(journals), own), read_options(environ)
        ).run()
        for program in programs:
            program.journal.release()


def _train(program: Program) -> None:
    at, rank = 0.0, program.meta.rank
    for n in range(STEPS):
        slower = 3 if (n, rank) == (FAULTY, SLOW) else 1
        at = _step(program, at, STEP_MS * slower, fails=(n, rank) == (FAULTY, FAILED))
    program.stop(at)


def _step(program: Program, at: float, length: float, *, fails: bool) -> float:
    span, begin = program.begin_step(at), at
    inside = {"parent": span, "root": span}
    wait = 1 - sum(SECTIONS.values())
    program.section("data.load", at, at + wait * length, category=names.DATA_LOADING, **inside)
    at += wait * length
    for section, share in SECTIONS.items():
        category = _CATEGORIES.get(section, "other")
        program.section(section, at, at + share * length, category=category, **inside)
        at += share * length
    program.end_step(span, begin, at, error=fails)
    return at


def show_traces(jaeger: str, world: int) -> None:
    """What Jaeger has of a step that every rank keeps, and of one with faults."""
    for n, what in ((0, "kept by every rank"), (FAULTY, "failed on one rank, slow on another")):
        trace = f"{ids.trace_id('0123abcd', 0, names.TRAIN, n):032x}"
        began = time.monotonic()
        answer = urllib3.request("GET", f"{jaeger}/api/v3/traces/{trace}", timeout=60.0)
        took_s = time.monotonic() - began
        spans = jaeger_trace(jaeger, trace)
        of_ranks = {span.resource["ml.distributed.rank"] for span in spans}
        print(
            f"step {what}: {len({span.span_id for span in spans}):,} spans of "
            f"{len(of_ranks):,} ranks of {world:,}, {len(answer.data) / 1e6:.1f} MB of JSON "
            f"in {took_s:.1f} s",
            flush=True,
        )


def show_commands(run_folder: str) -> None:
    """How long each command takes, and what it needs."""
    print("| command | seconds | CPU s | memory | says |\n|---|---:|---:|---:|---:|")
    for words in _COMMANDS:
        said = measure([word.format(folder=run_folder) for word in words], run_folder)
        print(f"| `{' '.join(words[:3])}` | {said} |", flush=True)


def measure(words: list[str], run_folder: str) -> str:
    """The cells of one command."""
    page = next((Path(word) for word in words if word.endswith(".html")), None)
    run = [] if words == ["runs"] else [run_folder]
    environ = os.environ | {"OTEL_MLPERF_DIR": str(Path(run_folder).parent)}
    command = [sys.executable, "-m", "otel_mlperf", words[0], *run, *words[1:]]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        streams = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        child = os.posix_spawn(sys.executable, command, environ, file_actions=streams)
        _, status, use = os.wait4(child, 0)
        took_s, size = time.monotonic() - began, out.tell()
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    size = page.stat().st_size if page else size
    cpu_s = use.ru_utime + use.ru_stime
    return f"{took_s:.1f} | {cpu_s:.1f} | {use.ru_maxrss / 1024:.0f} MiB | {size / 1e3:,.1f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--keep", type=Path, help="where the run folder is to stay")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="otel_mlperf-scale-") as folder:
        run_folder = str((given.keep or Path(folder)) / "wide-0123")
        os.makedirs(run_folder, mode=0o700)
        started = {"name": "wide", "started_ns": 1_700_000_000_000_000_000}
        write_run_file(run_folder, {"id": "0123abcd", "world_size": given.ranks} | started)
        with Collectors() as collectors:
            nodes = range(-(-given.ranks // NODE))
            calls = [(run_folder, node, given.ranks, collectors.node.otlp_http) for node in nodes]
            began = time.monotonic()
            with multiprocessing.get_context("spawn").Pool(AT_ONCE) as pool:
                pool.starmap(record_node, calls, chunksize=1)
            took_s = time.monotonic() - began
            print(f"{given.ranks:,} ranks on {len(nodes)} nodes in one folder, {took_s:.0f} s")
            show_traces(collectors.jaeger.url, given.ranks)
        show_commands(run_folder)


if __name__ == "__main__":
    main()
