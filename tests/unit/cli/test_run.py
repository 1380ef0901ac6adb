"""A program under ``otel-mlperf run`` behaves as under ``python``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kineto_recorded import needs_torch
from runs import LIMIT_S, settle

from otel_mlperf.cli.run import parse_arguments
from otel_mlperf.errors import UsageError
from otel_mlperf.integrations.program_launch import ProgramRequest as Wanted
from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

SCRIPTS = {
    "who it is": """
        import sys
        print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__, sys.flags)
    """,
    "its environment": """
        import os, subprocess, sys
        print(sorted(os.environ.items()), flush=True)
        subprocess.run([sys.executable, "-c", "import os; print(sorted(os.environ.items()))"])
    """,
    "its modules by name": """
        import sys
        print("torch" in sys.modules, "numpy" in sys.modules, sys.path)
    """,
    "what it reads": "import sys; print(sys.stdin.read())",
    "a number as exit code": "import sys; sys.exit(3)",
    "a text as exit code": "import sys; sys.exit('it did not work')",
    "an immediate exit": "import os; os._exit(5)",
    "a traceback": """
        def inner(number):
            return 1 / number

        try:
            inner(0)
        except ZeroDivisionError as error:
            raise ValueError("nothing to divide by") from error
    """,
    "a traceback of a thread": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="divider")
        thread.start()
        thread.join()
    """,
    "an interrupt": "raise KeyboardInterrupt",
    "a wrong syntax": "for in x",
    "pickled classes": """
        import pickle
        class Point:
            pass
        data = pickle.dumps(Point())
        print(data, type(pickle.loads(data)) is Point)
    """,
    "spawned workers": """
        import multiprocessing, os

        class Answer:
            def __init__(self, number):
                self.number = number

        def work(number):
            return Answer(number + 1), sorted(k for k in os.environ if "OTEL" in k)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print([(type(a) is Answer, a.number, names) for a, names in pool.map(work, [1, 2])])
    """,
    "forked workers": """
        import multiprocessing

        def work(number):
            return number + 1

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(work, [1, 2]))
    """,
    "its last words": """
        import atexit
        atexit.register(print, "goodbye")
        print("hello")
    """,
    "its random numbers": "import random; random.seed(1); print(random.random())",
}


def write(folder, name, text):
    lines = text.strip("\n").splitlines() or [""]
    margin = len(lines[0]) - len(lines[0].lstrip())
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line[margin:] for line in lines) + "\n")
    return path


@pytest.fixture
def execute(tmp_path):
    """Runs an interpreter in the test's folder; the text that it gets on stdin is ``input``."""

    def start(*arguments, stdin="from stdin", **environ):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("OTEL", "PYTHON"))},
                "OTEL_MLPERF_DIR": str(tmp_path / "runs"),
                "OTEL_MLPERF_CONSOLE": "false",
                **environ,
            },
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return start


def outcome(done):
    return done.returncode, done.stdout, done.stderr


def names_of_runs(folder):
    return sorted(run.facts.name for run in list_runs(folder / "runs"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_script_does_what_it_does_under_python(execute, tmp_path, text):
    """Output, errors, tracebacks and exit code are those of plain Python; and there is a run."""
    write(tmp_path, "train.py", text)
    plain = execute("train.py", "--lr", "1e-3", "--name", "x")

    run = execute("-m", "otel_mlperf", "run", "train.py", "--lr", "1e-3", "--name", "x")

    assert outcome(run) == outcome(plain)
    assert names_of_runs(tmp_path) == ["train"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "program",
    [("-m", "job.fit", "-x"), ("-m", "job"), ("job",), ("./job/fit.py",), ("-m", "job.missing")],
)
def test_modules_and_folders_run_as_under_python(execute, tmp_path, program):
    """Modules, packages and folders find themselves where Python puts them."""
    text = "import sys; print(sys.argv, sys.path[0], __name__, __spec__ and __spec__.name)"
    write(tmp_path, "job/__init__.py", "")
    write(tmp_path, "job/__main__.py", text)
    write(tmp_path, "job/fit.py", text)

    assert outcome(execute("-m", "otel_mlperf", "run", *program)) == outcome(execute(*program))


def test_options_of_the_interpreter_are_kept(execute, tmp_path):
    """What was said to Python before us holds for the program."""
    text = "import sys; print(sys.flags, sys.warnoptions, sys.stdout.write_through)"
    write(tmp_path, "train.py", text)
    options = ("-O", "-W", "error", "-X", "utf8", "-u")

    run = execute(*options, "-m", "otel_mlperf", "run", "train.py")

    assert outcome(run) == outcome(execute(*options, "train.py"))


def test_death_by_signal_is_seen_as_such(execute, tmp_path):
    """A launcher sees the signal that ended the program, not an exit code of ours."""
    write(tmp_path, "train.py", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")

    assert execute("-m", "otel_mlperf", "run", "train.py").returncode == -signal.SIGKILL


def test_sitecustomize_of_the_environment_still_runs(execute, tmp_path):
    """An environment's own start-up code runs first, and stays what is imported by that name."""
    write(tmp_path, "site/sitecustomize.py", "import sys; sys.started = True")
    write(tmp_path, "train.py", "import sys, sitecustomize as s; print(sys.started, s.__file__)")
    path = {"PYTHONPATH": str(tmp_path / "site")}

    run = execute("-m", "otel_mlperf", "run", "train.py", **path)

    assert outcome(run) == outcome(execute("train.py", **path))


def test_run_is_named_by_option(execute, tmp_path):
    """An option before the script is ours; the same word after it is the script's."""
    write(tmp_path, "train.py", "import sys; print(sys.argv[1:])")

    done = execute("-m", "otel_mlperf", "run", "--name", "first", "train.py", "--name", "second")

    assert done.stdout == "['--name', 'second']\n"
    assert names_of_runs(tmp_path) == ["first"]


@pytest.mark.parametrize("switch", ["OTEL_SDK_DISABLED", "nothing"])
def test_nothing_is_watched_where_nothing_is_recorded(execute, tmp_path, switch):
    """With recording off a framework is what its author made, and costs what that costs."""
    write(tmp_path, "torch.py", "")
    write(
        tmp_path,
        "train.py",
        "import sys, torch; print('otel_mlperf.pytorch.loop.loop_hooks' in sys.modules)",
    )

    done = execute("-m", "otel_mlperf", "run", "train.py", **{switch: "true"})

    assert done.stdout == f"{switch == 'nothing'}\n"


@pytest.mark.slow
def test_programs_of_a_launcher_are_recorded(execute, tmp_path):
    """Behind a command each Python program is a run; the workers that it starts are not."""
    write(tmp_path, "prepare.py", "print('prepared')")
    write(tmp_path, "train.py", SCRIPTS["spawned workers"])
    job = write(tmp_path, "job.sh", f"{sys.executable} prepare.py\n{sys.executable} train.py")

    done = execute("-m", "otel_mlperf", "run", "--", "sh", job)

    assert (done.returncode, done.stderr) == (0, "")
    assert names_of_runs(tmp_path) == ["prepare", "train"]


@pytest.mark.slow
def test_ranks_of_a_launching_script_are_recorded(execute, tmp_path):
    """A script of one's own that starts ranks is a run, and so are they."""
    write(tmp_path, "rank.py", "print('rank')")
    text = f"""
        import os, subprocess
        for environ in ({{}}, {{"RANK": "0"}}):
            subprocess.run([{sys.executable!r}, "rank.py"], env=os.environ | environ, check=True)
    """
    write(tmp_path, "launch.py", text)

    done = execute("-m", "otel_mlperf", "run", "--", sys.executable, "launch.py")

    assert (done.returncode, done.stderr) == (0, "")
    assert names_of_runs(tmp_path) == ["launch", "rank"]


PATCHED = """
    import subprocess, _thread, threading

    numbers = {}
    number = lambda real=_thread.get_ident: numbers.setdefault(real(), 1 + len(numbers))
    threading.get_ident = _thread.get_ident = number
    threading.main_thread()._ident = number()
    original = subprocess.Popen
    subprocess.Popen = type("Popen", (original,), {"__init__": original.__init__})
    original.__init__ = None

    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(8):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
@needs_torch
def test_program_that_patches_threads_and_processes_is_recorded(execute, tmp_path):
    """As gevent does once the run has started: each step is there, and no traceback at the end."""
    write(tmp_path, "train.py", PATCHED)

    done = execute("-m", "otel_mlperf", "run", "train.py", OTEL_MLPERF_CONSOLE="true")

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    (run,) = list_runs(tmp_path / "runs")
    settle(run.path)
    assert Store(run.path).rows("SELECT count(*) FROM steps") == [(8,)]


WRAPPERS = {
    "replaces itself": "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])",
    "starts it": "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", WRAPPERS.values(), ids=WRAPPERS.keys())
@pytest.mark.parametrize("arguments", [("train.py", "--lr", "1"), ("-c", "print('text')")])
def test_program_behind_a_wrapper_is_recorded(execute, tmp_path, text, arguments):
    """What a Python wrapper is told to run is the run; the wrapper is none, nor are helpers."""
    helper = [sys.executable, "helper.py"]
    write(tmp_path, "helper.py", "print('helped', flush=True)")
    write(tmp_path, "wrap.py", f"import subprocess; subprocess.run({helper!r}, check=True)\n{text}")
    write(tmp_path, "train.py", "import sys; print(sys.argv)")
    words = ("wrap.py", sys.executable, *arguments)

    done = execute("-m", "otel_mlperf", "run", "--", sys.executable, *words)

    assert outcome(done) == outcome(execute(*words))
    assert names_of_runs(tmp_path) == ["train" if arguments[0] == "train.py" else "run"]


@pytest.mark.slow
def test_program_that_starts_itself_again_is_recorded(execute, tmp_path):
    """With another variable, say: what it does then is one run, and its variables are its own."""
    text = f"""
        import os, sys
        if os.environ.get("AGAIN") != "1":
            environ = os.environ | {{"AGAIN": "1"}}
            os.execve({sys.executable!r}, [sys.executable, *sys.argv], environ)
        print(sorted(os.environ.items()))
    """
    write(tmp_path, "train.py", text)

    done = execute("-m", "otel_mlperf", "run", "train.py")

    assert outcome(done) == outcome(execute("train.py"))
    assert names_of_runs(tmp_path) == ["train"]


def test_program_that_cannot_be_replaced_goes_on_being_recorded(execute, tmp_path):
    """A command that is nowhere raises what it would, and the run goes on."""
    text = """
        import os
        try:
            os.execvp("missing-command", ["missing-command"])
        except FileNotFoundError as error:
            print(error)
        import otel_mlperf.recorder.api.start as start
        print(start.current().is_active)
    """
    write(tmp_path, "train.py", text)

    done = execute("-m", "otel_mlperf", "run", "train.py")

    assert done.stdout.splitlines()[-1] == "True"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words", [("-",), ("--", sys.executable), ("--", sys.executable, "-")], ids=" ".join
)
def test_script_on_standard_input_is_recorded(execute, tmp_path, words):
    """As under Python, in each way in which it reads one."""
    done = execute("-m", "otel_mlperf", "run", *words, stdin="import sys; print(sys.argv[1:])")

    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert names_of_runs(tmp_path) == ["stdin"]


@pytest.mark.parametrize("words", [(), ("--", sys.executable)])
def test_script_given_as_text_is_recorded(execute, tmp_path, words):
    """The command itself; texts by which a shell computes a value are not."""
    text = "import sys; print(sys.argv)"

    done = execute("-m", "otel_mlperf", "run", *words, "-c", text, "x")

    assert outcome(done) == outcome(execute("-c", text, "x"))
    assert names_of_runs(tmp_path) == ["run"]


def test_texts_of_a_shell_are_not_recorded(execute, tmp_path):
    """They are no programs of their own."""
    job = write(tmp_path, "job.sh", f"{sys.executable} -c 'print(1)'")

    assert execute("-m", "otel_mlperf", "run", "--", "sh", job).stdout == "1\n"
    assert names_of_runs(tmp_path) == []


@pytest.mark.parametrize("level", ["detailed", "off"])
def test_program_that_gets_no_environment_runs_and_is_named(execute, tmp_path, level):
    """One sentence with what to do instead; nothing where nothing is to be recorded."""
    write(tmp_path, "train.py", "print('trained')")
    words = ("--level", level, "--", sys.executable, "-I", "train.py")

    done = execute("-m", "otel_mlperf", "run", *words)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert names_of_runs(tmp_path) == []
    said = (
        "otel-mlperf: not recorded: Python ignores environment variables with -I; start Python "
        "without this option\n"
    )
    assert done.stderr == (said if level == "detailed" else "")


@pytest.mark.sampled(1)
@pytest.mark.fault("F59")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_program_runs_without_its_standard_streams(tmp_path, closed):
    """As under Python: a shell may close them."""
    (tmp_path / "mk.py").write_text("open('made', 'w').close()")
    line = f"{sys.executable} -m otel_mlperf run mk.py {closed}"

    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False)

    assert (ended.returncode, (tmp_path / "made").exists()) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.py"], 66, "no script missing.py in {here}; scripts here: fit.py, train.py"),
        (["."], 66, "run: . is a folder without __main__.py; scripts here: fit.py, train.py"),
        (["env"], 66, "to run a command, write -- before the command: otel-mlperf run -- env"),
        (["-m", "missing.part"], 66, "no module 'missing' in {here}"),
        (["--", "missing-command"], 66, "no command 'missing-command' on PATH"),
        (["--", "train.py"], 66, "for a script, omit the --: otel-mlperf run train.py"),
        ([], 2, "no program; pass a script, -m MODULE, -c CODE or -- COMMAND"),
        (["--names", "x", "train.py"], 2, "no such option --names"),
        (["-x", "train.py"], 2, "options of Python come first: python -x …"),
    ],
)
def test_what_cannot_be_run_is_said(execute, tmp_path, arguments, code, said):
    """A wrong command line ends before any work, with what was found and what to do."""
    write(tmp_path, "train.py", "")
    write(tmp_path, "fit.py", "")

    done = execute("-m", "otel_mlperf", "run", *arguments)

    assert done.returncode == code
    assert said.format(here=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_wrong_settings_of_the_environment_do_not_end_the_program(execute, tmp_path):
    """A configuration file that does not exist is named, and the program runs."""
    write(tmp_path, "train.py", "print('trained')")

    done = execute("-m", "otel_mlperf", "run", "train.py", OTEL_MLPERF_CONFIG="missing.yaml")

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "missing.yaml" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["a.py", "--", "x"], Wanted(None, ["a.py", "--", "x"], False)),
        (
            ["--name=n", "-m", "a", "--name", "x"],
            Wanted("n", ["-m", "a", "--name", "x"], False),
        ),
        (
            ["--name", "n", "--", "torchrun", "a.py"],
            Wanted("n", ["torchrun", "a.py"], True),
        ),
    ],
)
def test_everything_after_the_program_is_its_own(arguments, wanted):
    """Our options end where the program begins."""
    assert parse_arguments(arguments) == wanted


def test_name_needs_a_name():
    """An option without its value is a usage error, not a program called --name."""
    with pytest.raises(UsageError, match="--name needs a name"):
        parse_arguments(["--name"])


def test_profile_takes_a_schedule():
    """It is checked before the program starts, and written as every process reads it."""
    asked = parse_arguments(["--profile", "wait=3, active=2", "--name=n", "a.py", "--profile"])

    assert asked == Wanted("n", ["a.py", "--profile"], False, "wait=3,active=2")
    with pytest.raises(UsageError, match="--profile needs a schedule"):
        parse_arguments(["--profile"])
    with pytest.raises(UsageError, match=r"--profile wait: .*expected name=value"):
        parse_arguments(["--profile", "wait", "a.py"])


def test_bootstrap_folder_holds_nothing_else():
    """What is put at the front of a program's path can shadow one module only."""
    from otel_mlperf.integrations.start_request import FOLDER

    assert [path.name for path in Path(FOLDER).glob("*.py")] == ["sitecustomize.py"]


def test_a_level_is_one_that_there_is():
    """It is taken for the program; another word is refused before anything runs."""
    assert parse_arguments(["--level", "detailed", "train.py"]).level == "detailed"
    with pytest.raises(UsageError, match="--level loud: expected one of off, light, basic"):
        parse_arguments(["--level", "loud", "train.py"])
