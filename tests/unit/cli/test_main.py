"""The command line answers, and ends with the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import warm_python
from by_hand import Program
from fault_server import FaultServer
from kineto_traces import training_step, write_trace
from run_folders import MS, RunFolderBuilder, S, digits

from otel_mlperf.cli import main
from otel_mlperf.journal.layout import Word


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs that the commands look in, for a terminal without colour."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """Calls the real entry; gives exit code, output and messages."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


def test_summary_of_the_latest_run_is_plain_when_piped(runs, command):
    """No argument, no colour."""
    digits(runs).write()

    code, out, err = command("summary")

    assert (code, err) == (0, "")
    assert out.startswith(
        "digits · 3f2a · finished · 1 rank, 1 node · 3.05 s\n40 steps · mean 51.0"
    )


def test_the_closing_text_goes_to_stderr(runs, command):
    """The program's output stays its own; afterwards the process can be terminated as before."""
    path, before = digits(runs).write(), signal.getsignal(signal.SIGTERM)

    code, out, err = command("summary", str(path), "--closing", "--wait-stored", "/nowhere/0-1-0:9")

    assert (code, out) == (0, "")
    assert signal.getsignal(signal.SIGTERM) is before
    assert err.endswith("next      otel-mlperf show 3f2a --step 23\n")


@pytest.mark.parametrize("beside", [False, True])
def test_the_closing_text_of_a_run_that_is_not_stored_says_that_it_ended(
    runs, command, monkeypatch, beside
):
    """Its tables still say that it runs; where another rank of it does, that is so."""
    monkeypatch.setattr("otel_mlperf.journal.stored_wait.PATIENCE_S", 0.0)
    run = RunFolderBuilder(runs)
    run.process(outcome="running")
    path, journals = str(run.write()), runs / "journals"
    journals.mkdir()
    journal = Program(journals, runs).journal
    journal.words[Word.END_TIME] = 3 * S
    if beside:
        Program(journals, runs, rank=1)
    ended = command("summary", path, "--closing", "--wait-stored", f"{journal.path}:5")[2]
    cell = json.loads(command("summary", path, "--cell", "--wait-stored", "/nowhere/0-1-0:9")[1])

    told = "ended · 1 rank, 1 node · 3.00 s\nits steps and sections are not stored yet\n"
    assert ended.startswith(f"digits · 3f2a · {'running · ' if beside else told}")
    assert "rank 0: 5 of 5 rows are still being stored" in ended
    assert cell.keys() == {"text/plain", "text/html"}


def test_every_reader_speaks_json(runs, command):
    """With the same facts, in nanoseconds."""
    digits(runs).write()

    summary = json.loads(command("summary", "--json")[1])
    step = json.loads(command("show", "3f2a", "--step", "30", "--json")[1])
    listed = json.loads(command("runs", "--json")[1])["runs"]
    checked = json.loads(command("doctor", "--json")[1])

    assert (summary["steps"]["count"], summary["slowest"]["duration_ns"]) == (40, 128_000_000)
    assert (step["number"], step["ranks"][0]["kept"], step["nearby"]) == (
        30,
        None,
        [1, 2, 3, 4, 23],
    )
    assert [(run["short_id"], run["outcome"], run["steps"]) for run in listed] == [
        ("3f2a", "finished", 40)
    ]
    assert checked["accounting"]["spans"]["store"] == {
        "created": 200,
        "delivered": 40,
        "rolled_up": 0,
        "unselected": 160,
        "pending": 0,
        "lost": {},
    }
    assert {check["level"] for check in checked["checks"]} <= {"ok", "warn", "FAIL"}


def test_html_is_for_notebooks(runs, command):
    """One piece, no page."""
    digits(runs).write()

    assert command("summary", "--html")[1].startswith("<div style=")


def test_runs_are_cut_at_twenty_unless_all_are_wanted(runs, command):
    """The rest is counted."""
    for number in range(22):
        run = RunFolderBuilder(runs, "a", f"{number:04}x", started_ns=(1000 + number) * S)
        run.write()

    listed = command("runs")[1].splitlines()

    assert listed[1].startswith("0021  a")
    assert (len(listed), listed[-1]) == (22, "2 older runs not shown: --all")
    assert len(command("runs", "--all")[1].splitlines()) == 23


@pytest.mark.parametrize("arguments", [["summary"], ["compare", "3f2a", "3f2a"], ["doctor"]])
def test_a_run_folder_that_others_can_change_is_warned_of_once(runs, command, arguments):
    """On stderr; the command answers as ever."""
    digits(runs).write().chmod(0o770)

    _, out, err = command(*arguments)

    assert err.count("otel-mlperf: other users can change the run folder") == 1
    assert out


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bogus"], 2, "No such command 'bogus'"),
        (["sumary"], 2, "Did you mean 'summary'?"),
        (["train.py"], 2, "Did you mean 'otel-mlperf run train.py'?"),
        (["periods"], 2, "Use 'otel-mlperf summary --every 1h' instead."),
        (
            ["summary", "--every", "1h", "--epochs"],
            2,
            "--every cannot be combined with --calls, --epochs or --html",
        ),
        (
            ["summary", "--every", "1h", "--functions"],
            2,
            "--functions and --every cannot be combined",
        ),
        (["summary", "--top", "3"], 2, "--section and --top require --functions"),
        (["profile", "--json"], 2, "--json and --workers require --loader"),
        (["doctor", "--endpoint", "http://x"], 2, "--endpoint requires --recover"),
        (["doctor", "--recover", "--json"], 2, "--recover does not support --json"),
        (["export", "--otlp", "--rank", "0"], 2, "--otlp sends all sampled spans"),
        (["serve", "bogus"], 2, "serve bogus: expected agent [RUN] [--once], or mcp"),
        (["reference", "bogus"], 2, "expected metrics, schema or schema COMMAND"),
        (
            ["show", "--phase", "trian"],
            66,
            "trian step of run 3f2a: the run has only steps of phase train;",
        ),
        (
            ["show", "--step", "2", "--phase", "trian"],
            66,
            "of run 3f2a: the run has only steps of phase train;",
        ),
        (["summary", "--bogus"], 2, "No such option"),
        (["show", "--step", "x"], 2, "Invalid value for '--step'"),
        (["run"], 2, "run: no program; pass a script, -m MODULE, -c CODE or -- COMMAND"),
        (["run", "nowhere.py"], 66, "run: no script nowhere.py in "),
        (["summary", "nope"], 66, "otel-mlperf: looking for run 'nope' in "),
        (["show", "--step", "99"], 66, "completed steps: train 0 to 39 on 1 rank"),
        (
            ["export", "--otlp"],
            78,
            "otel-mlperf: sending: no endpoint is set; pass --endpoint http://",
        ),
        (
            ["export", "--endpoint", "localhost:4318"],
            78,
            "sending: endpoint=localhost:4318 is not a URL like http://localhost:4318",
        ),
        (["summary", "--wait-stored", "x"], 2, "--wait-stored x: expected JOURNAL:SLOT"),
    ],
)
def test_errors_end_with_the_code_of_their_kind(runs, command, monkeypatch, arguments, code, said):
    """2 for a wrong command line, else that of sysexits; one message, no traceback."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    digits(runs).write()

    found, out, err = command(*arguments)

    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert err.count("otel-mlperf: ") <= 1


def test_a_damaged_file_ends_with_65_and_its_name(runs, command):
    """The path to move away."""
    bad = digits(runs).write() / "tables" / "steps" / "node2-000001.parquet"
    bad.write_bytes(b"")

    code, _, err = command("summary")

    assert code == 65
    assert err.startswith(f"otel-mlperf: reading {bad}: ")


def test_help_names_every_command(command):
    """One line each, and how a run is named."""
    code, out, _ = command("--help")

    assert code == 0
    for word in ("run", "summary", "show", "runs", "doctor", "export", "serve", "latest"):
        assert f" {word} " in out.replace("`", " ").replace(",", " ")


@pytest.mark.parametrize(
    "name", ["run", "summary", "show", "runs", "doctor", "export", "serve", "reference"]
)
def test_every_command_has_its_own_help(command, name):
    """Hidden options stay hidden."""
    code, out, _ = command(name, "--help")

    assert code == 0
    assert name in out
    assert "--wait-stored" not in out


def test_version_is_the_packages(command):
    """As installed."""
    assert command("--version")[1].startswith("otel-mlperf 0.")


def start(*arguments, **options):
    """The command as a process of its own."""
    return warm_python.Popen(
        [sys.executable, "-m", "otel_mlperf", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_hears_nothing(runs, unbuffered):
    """``otel-mlperf summary | head -0``: no message, no traceback."""
    digits(runs).write()
    process = start("summary", env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(), err) == (0, "")


def test_a_command_that_acts_tells_that_it_was_stopped(runs, tmp_path):
    """What was left of ``otel-mlperf import A B --run latest | head -0`` is not done."""
    digits(runs).write()
    trace = write_trace(tmp_path / "t.json", training_step())
    process = start("import", str(trace), "--run", "latest")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(), err) == (1, "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command_line", ["summary", "runs", "show --step 2", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_ends_with_74(runs, command_line, unbuffered):
    """A full disk is said in one line, without a traceback."""
    digits(runs).write()
    with open("/dev/full", "w") as full:
        ended = warm_python.run(
            [sys.executable, "-m", "otel_mlperf", *command_line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )

    assert (ended.returncode, ended.stderr) == (74, "otel-mlperf: No space left on device\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("command_line", "closed"),
    [
        ("summary", ">&-"),
        ("show", ">&-"),
        ("reference metrics", ">&-"),
        ("doctor", ">&-"),
        ("top", ">&-"),
        ("summary --closing", "<&- >&- 2>&-"),
    ],
)
def test_output_that_was_closed_is_written_nowhere(runs, command_line, closed):
    """``otel-mlperf summary >&-`` ends as ``otel-mlperf summary >/dev/null`` does."""
    digits(runs).write()
    line = f"{sys.executable} -m otel_mlperf {command_line}"

    unread = warm_python.run(f"{line} >/dev/null", shell=True, capture_output=True, check=False)
    ended = warm_python.run(f"{line} {closed}", shell=True, capture_output=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (unread.returncode, b"", b"")


def test_runs_names_a_folder_that_cannot_be_read(runs, command):
    """Below the runs that can."""
    digits(runs).write()
    (runs / "bad-77aa").mkdir()
    (runs / "bad-77aa" / "run.json").write_text("{")

    assert command("runs")[1].splitlines()[-1] == (
        "bad-77aa: the file run.json of this run cannot be read"
    )
    assert command("summary")[0] == 0


def test_ctrl_c_ends_with_130_and_no_traceback(runs):
    """While it waits for a server that has the request and does not answer."""
    run = digits(runs)
    run.span(2, "train.step", 0, MS)
    run.write()
    (runs / "server").mkdir()
    with FaultServer(runs / "server") as server:
        server.mode("hang")
        process = start("export", "--endpoint", server.url)
        while not server.requests():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()

    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_run_command_starts_without_the_libraries_of_the_others():
    """It becomes the program: what it loaded would only cost time."""
    script = (
        "import sys; sys.argv = ['otel-mlperf', 'run', '--help']\n"
        "from otel_mlperf.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'typer', 'rich', 'duckdb', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )

    found = warm_python.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert found.stdout.splitlines()[-1] == "[]"
