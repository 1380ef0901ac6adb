"""A running job is watched as it is, without a server, and the terminal is clean afterwards."""

from __future__ import annotations

import json
import re
import signal
import sys
import uuid
from contextlib import contextmanager

import pytest
import warm_python
from runs import LIMIT_S, PROGRAMS, ending, environment
from servers.running import wait_until
from terminal_screen import Screen

LOADS = ("0.02", "0.04")
TOP = [sys.executable, "-m", "otel_mlperf", "top"]
LEAVES_SCREEN, SHOWS_CURSOR, ENTERS_SCREEN = "\x1b[?1049l", "\x1b[?25h", "\x1b[?1049h"


@pytest.fixture
def runs(tmp_path):
    """A folder of runs."""
    return tmp_path / "runs"


@contextmanager
def started(folder, runs, loads, *options, **variables):
    """Ranks that wait for each other, each with its time to load, for longer than any test."""
    meeting = folder / "meeting"
    meeting.write_bytes(bytes(8 * len(loads)))
    shared = variables | {"OTEL_MLPERF_RUN_ID": uuid.uuid4().hex, "OTEL_MLPERF_CONSOLE": "false"}
    made = [
        warm_python.Popen(
            [sys.executable, PROGRAMS / "uneven.py", "--meet", meeting, "--steps", "1000000",
             "--load", load, *options],
            env=environment(runs, RANK=str(rank), WORLD_SIZE=str(len(loads)), **shared),
        )
        for rank, load in enumerate(loads)
    ]  # fmt: skip
    with ending(made):
        wait_until(lambda: list(runs.glob("*/run.json")), what="the run folder")
        yield made


@pytest.fixture(params=["process", "none"])
def ranks(request, tmp_path, runs):
    """Two ranks, the second loads at half the speed; once with an agent and once without."""
    with started(tmp_path, runs, LOADS, OTEL_MLPERF_AGENT=request.param) as made:
        yield made
        for process in made:
            process.send_signal(signal.SIGINT)
        for process in made:
            process.wait(LIMIT_S)
    (run,) = runs.glob("*/run.json")
    warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", run.parent],
        env=environment(runs), capture_output=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def look(runs, *arguments):
    done = warm_python.run(
        [*TOP, *arguments], env=environment(runs), capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(runs, steps, ranks=2):
    """The run as ``--json`` shows it, once all ranks are seen to have made so many steps."""

    def now():
        found = json.loads(look(runs, "--json"))
        made = [len(rank["step_ns"]) for rank in found["ranks"]]
        return found if len(made) == ranks and min(made) >= steps else None

    return wait_until(now, what=f"steps of {ranks} ranks")


def in_step(runs, after):
    """The run at a later moment in which nothing held up the ranks, or who looks at them."""

    def now():
        found = seen(runs, 12)
        waits = [rank["data_wait"] for rank in found["ranks"]]
        together = min(rank["step"] for rank in found["ranks"]) >= found["step"] - 1
        later = found["step"] > after["step"]
        return found if later and together and waits[1] > 1.3 * waits[0] else None

    return wait_until(now, what="ranks in step, of which one waits for its data")


@pytest.mark.slow
@pytest.mark.usefixtures("ranks")
def test_ranks_are_seen_as_they_are_now(runs):
    """Steps, open sections, waits and speed of both ranks, whether or not an agent runs."""
    first = seen(runs, 12)
    later = in_step(runs, first)

    assert (first["outcome"], first["is_seen"], first["world_size"]) == ("running", True, 2)
    assert first["steps_per_s"] > 0
    for rank in later["ranks"]:
        assert rank["section"] in {"data.load", "forward", "all_reduce", "train.step"}
        assert rank["open_ns"] >= 0
        assert min(rank["step_ns"]) > 50e6  # each rank works 30 ms and waits for the slower loader
    assert set(later["last"]) == {"loss", "lr", "grad_norm"}


@pytest.fixture
def screen(runs):
    """``top`` in a terminal."""
    made = []

    def make():
        made.append(Screen(TOP, environment(runs)))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["none"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_leaving_gives_the_terminal_back(ranks, runs, screen, number):
    """Frames are on a screen of their own; afterwards cursor, screen and modes are as before."""
    seen(runs, 2)
    shown = screen()
    wait_until(lambda: len(re.findall("step ms", shown.read())) >= 3, what="three frames")
    shown.process.send_signal(number)
    code = wait_until(lambda: (shown.read() and shown.process.poll() is not None) or None)

    assert code
    assert shown.process.returncode == 0
    said = shown.read()
    assert said.count(ENTERS_SCREEN) == said.count(LEAVES_SCREEN) == 1
    assert SHOWS_CURSOR in said[said.index(ENTERS_SCREEN) :]
    after = said.partition(LEAVES_SCREEN)[2]
    assert "uneven" in after
    assert "Traceback" not in said
    assert shown.is_as_before


@pytest.mark.slow
def test_it_leaves_by_itself_when_the_run_has_ended(tmp_path, runs, screen):
    """The last frame stays, and says that the run is over."""
    until = tmp_path / "until"
    with started(tmp_path, runs, LOADS[:1], "--until", until) as (alone,):
        seen(runs, 2, ranks=1)
        shown = screen()
        wait_until(lambda: "step ms" in shown.read(), what="a frame")
        until.touch()
        assert alone.wait(LIMIT_S) == 0
    wait_until(lambda: (shown.read(), shown.process.poll())[1] is not None, what="the end")

    after = shown.read().partition(LEAVES_SCREEN)[2]
    assert shown.process.returncode == 0
    assert "run finished" in after
