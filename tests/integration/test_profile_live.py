"""Windows of a real run, with its agent, contain what was requested, however the run continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import warm_python
from runs import LIMIT_S, PROGRAMS, environment, run_program
from servers.running import wait_until

from otel_mlperf.journal.journal_folder import folders_of_run, journals_in
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.profiler_windows import read_window
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

EXAMPLES = Path(__file__).parents[2] / "examples"


def windows(folder):
    return [read_window(path) for path in sorted((folder / "profiles").glob("*.window.json"))]


def events(folder, window):
    return json.loads((folder / "profiles" / window.trace).read_text())["traceEvents"]


def profile(tmp_path, *arguments, **variables):
    quiet = {"OTEL_MLPERF_CONSOLE": "false"}
    return run_program(tmp_path / "runs", *arguments, program="windows.py", **quiet | variables)


def test_windows_are_recorded_and_their_steps_kept(tmp_path):
    """By a variable alone; the terminal stays empty, of Kineto's words too."""
    ended = profile(tmp_path, OTEL_MLPERF_PROFILE="wait=6,warmup=1,active=3,repeat=1")
    ended.settled()

    assert (ended.code, ended.output, ended.errors) == (0, "", "")
    (window,) = windows(ended.folder)
    assert [step.n for step in window.steps] == [7, 8, 9]
    kept = ended.rows("SELECT n FROM steps WHERE kept = 'profiled' ORDER BY n")
    assert kept == [{"n": n} for n in (7, 8, 9)]
    spans = ended.rows("SELECT span_id, trace_id FROM spans WHERE kept = 'profiled' AND n > 4")
    assert {(s.span, s.trace) for s in window.steps} <= {tuple(r.values()) for r in spans}
    (parent,) = ended.rows("SELECT span_id FROM spans WHERE name = 'profiler.export'")
    assert parent["span_id"] == window.parent


@pytest.mark.parametrize(
    ("how", "code", "steps"),
    [("interrupt", -signal.SIGINT, [4, 5, 6]), ("fork", 0, [4, 5, 6, 7])],
)
def test_window_survives_what_happens_in_it(tmp_path, how, code, steps):
    """Ctrl-C keeps what was recorded; a forked child records nothing into it."""
    ended = profile(tmp_path, "--how", how, OTEL_MLPERF_PROFILE="wait=3,warmup=1,active=4,repeat=1")

    assert ended.code in {code, 128 - code if code else 0}
    (window,) = windows(ended.folder)
    assert [step.n for step in window.steps] == steps
    assert window.is_cut == (how == "interrupt")
    assert events(ended.folder, window)


@pytest.mark.fault("F84")
def test_full_disk_costs_the_window_only(tmp_path):
    """The program ends as it would have; no half trace stays, and it is said once."""
    ended = profile(
        tmp_path, "--how", "full", OTEL_MLPERF_PROFILE="wait=3,warmup=1,active=4,repeat=2"
    )

    assert ended.code == 0
    assert ended.errors.count("\n") == 1
    assert "a profiler window is lost" in ended.errors
    assert list((ended.folder / "profiles").iterdir()) == []


def test_program_without_torch_is_left_alone(tmp_path):
    """A schedule in its environment imports nothing into it; it is said once."""
    ended = run_program(
        tmp_path / "runs", OTEL_MLPERF_PROFILE="wait=3,active=2,repeat=2",
        OTEL_MLPERF_CONSOLE="false",
    )  # fmt: skip

    assert ended.code == 0
    assert ended.errors == (
        "otel_mlperf: the program has not imported torch: nothing is profiled\n"
    )
    ended.settled()
    (counted,) = ended.rows(
        "SELECT max(value) AS n FROM readings WHERE name = 'otel_mlperf.profile.skipped.no_torch'"
    )
    assert counted["n"] == 2


def test_untouched_script_is_profiled_by_a_flag(tmp_path):
    """``otel-mlperf run --profile``: the steps are those that the hooks find."""
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "run", "--profile", "wait=4,warmup=1,active=3",
         "train_digits_untouched.py", "--epochs", "1", "--checkpoint", tmp_path / "digits.pt"],
        cwd=EXAMPLES, env=environment(tmp_path / "runs"), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    (run,) = (tmp_path / "runs").iterdir()

    assert done.returncode == 0, done.stderr
    assert "Kineto" not in done.stderr
    assert "USDT" not in done.stderr
    (window,) = windows(run)
    assert [step.n for step in window.steps] == [5, 6, 7]
    names = [event.get("name") for event in events(run, window)]
    assert names.count("aten::max_pool2d") == 3


def test_wrong_flag_is_refused_before_the_program_starts(tmp_path):
    """It exits with 2 and says what was expected."""
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "run", "--profile", "wait=soon", "x.py"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "wait is 'soon', expected a whole number" in done.stderr


def ask(folder, env, *options):
    """What ``otel-mlperf profile`` says."""
    return warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "profile", folder, *options],
        env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


class Job:
    """A training that goes on until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        self.env = environment(folder / "runs", OTEL_MLPERF_CONSOLE="false")
        self._stop = folder / "count.stop"
        self._process = warm_python.Popen(
            [sys.executable, PROGRAMS / "windows.py", "--count", folder / "count", "--steps",
             "1000000", "--pause", "0.01"],
            env=self.env, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_until(lambda: list(folder.glob("runs/*/tables/steps/*")), what="the first steps")
        (self.folder,) = (folder / "runs").iterdir()

    def ask(self, *options):
        return ask(self.folder, self.env, *options)

    def step(self):
        """The number of the step that its journal says is open."""
        (journal,) = journals_in(*folders_of_run(read_run(self.folder).facts.id, self.folder))
        with closing(JournalReader(str(journal), is_writable=False)) as reader:
            return reader.word(Word.STEP)

    @contextmanager
    def waiting(self, *options):
        """The command that waits for its window, once the job has been asked for it."""
        command = [sys.executable, "-m", "otel_mlperf", "profile", self.folder, *options, "--wait"]
        process = warm_python.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert "requested a window" in process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def stopped(self):
        """It makes no step meanwhile, however long somebody else takes."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self):
        self._stop.touch()
        errors = self._process.communicate(timeout=LIMIT_S)[1]
        return self._process.returncode, errors


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    running = Job(tmp_path_factory.mktemp("job"))
    yield running
    assert running.end() == (0, "")


@pytest.mark.slow
def test_running_job_is_asked_for_a_window(job):
    """The command waits for it and names the trace, which holds so many steps."""
    before = len(windows(job.folder))
    done = job.ask("--steps", "2", "--wait")

    assert done.returncode == 0, done.stderr
    assert "rank 0: requested a window of 2 steps" in done.stdout
    window = windows(job.folder)[-1]
    assert len(windows(job.folder)) == before + 1
    assert done.stdout.splitlines()[-1] == f"rank 0: {job.folder / 'profiles' / window.trace}"
    assert len(window.steps) == 2
    assert events(job.folder, window)
    assert window.trace in read_traces(job.folder), "--wait ends when kernels shows the window"


def read_traces(folder):
    """The windows that ``kernels`` shows."""
    return {trace for (trace,) in Store(folder).rows("SELECT trace FROM windows")}


@pytest.mark.slow
def test_interrupt_leaves_a_window_that_can_be_ended(job):
    """Ctrl-C of a command that waits says how; the window has the steps up to then."""
    with job.waiting("--steps", "9000") as waiting:
        wait_until(lambda: "is still open" in job.ask("--no-wait").stderr, what="the window")
        warm = job.step() + 3  # a window that is ended in its warm-up has no trace
        wait_until(lambda: job.step() > warm, what="steps in the window")
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=LIMIT_S)
    done = job.ask("--stop", "--wait")

    assert "the window of 9,000 steps continues; to end the window: otel-mlperf profile " in errors
    assert done.returncode == 0, done.stderr
    assert "the window ends with the current step" in done.stdout
    assert windows(job.folder)[-1].is_cut
    assert job.ask("--stop", "--no-wait").stdout == "rank 0: no requested window is open\n"


@pytest.mark.slow
def test_rank_that_is_not_there_is_named(job):
    """With those that are."""
    done = job.ask("--rank", "7")

    assert done.returncode == 2
    assert "rank 7 of run" in done.stderr
    assert "ranks on this node: 0" in done.stderr


@pytest.mark.slow
def test_second_command_is_refused_while_a_window_is_open(job):
    """The first one gets its window, of all its steps."""
    before = len(windows(job.folder))
    with job.stopped():
        first = job.ask("--steps", "150", "--no-wait")
        asked = job.step()
    wait_until(lambda: job.step() > asked + 3, what="steps in the window")
    with job.stopped():
        second = job.ask("--no-wait")
    wait_until(lambda: len(windows(job.folder)) > before, what="the window")

    assert first.returncode == 0
    assert second.returncode == 74
    assert "150 steps" in second.stderr
    assert "/dev/shm" not in second.stderr
    assert len(windows(job.folder)[-1].steps) == 150


def test_run_that_has_ended_is_not_asked(tmp_path):
    """The command says so."""
    ended = run_program(tmp_path / "runs", OTEL_MLPERF_CONSOLE="false").settled()
    done = ask(ended.folder, environment(tmp_path / "runs"))

    assert done.returncode == 69
    assert "no process of the run is active on this node" in done.stderr
