"""Programs that start warm behave as those that `subprocess` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import warm_python

ALONE = """
import typing_extensions, sys
print({"torch", "numpy"} & sys.modules.keys())
"""
IMPORTED = """
import sys
print(sorted({"torch", "numpy", "otel_mlperf", "warm_python"} & sys.modules.keys()))
import torch, numpy
print(torch.ones(2).sum(), torch.__spec__.name, "torch.nn" in sys.modules)
"""
THREAD = """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
"""
EXEC = """
import os, sys
os.environ["LEFT"] = "1"
os.execv(sys.executable, [sys.executable, "main.py", "by exec"])
"""
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)"
PROGRAMS = {
    "prints its arguments": ["-c", "import sys; print(sys.argv, __name__)", "a", "b"],
    "reads its input": ["-c", "print(input()[::-1])"],
    "fails": ["-c", "def f():\n    1 / 0\nf()"],
    "fails in a file": ["fails.py"],
    "is not there": ["nowhere.py"],
    "is a module": ["-m", "main", "x"],
    "ends with a code": ["-c", "import sys; sys.exit(3)"],
    "ends with a text": ["-c", "raise SystemExit('enough')"],
    "calls what is registered": ["-c", "import atexit; atexit.register(print, 'end'); print(1)"],
    "waits for its threads": ["-c", THREAD],
    "is killed": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "is interrupted": ["-c", "raise KeyboardInterrupt"],
    "is silent about warnings": ["-W", "ignore", "-c", "import warnings; warnings.warn('once')"],
    "is isolated": ["-I", "-c", "import sys; print(sys.path, hasattr(sys, 'custom'))"],
    "is safe": ["-P", "-m", "json.tool", "--help"],
    "has no other descriptor": ["-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
    "becomes another": ["-c", EXEC],
    "has a sitecustomize": ["-c", "import sys; print(sys.custom)"],
    "imports what torch imports": ["-c", ALONE],
    "imports": ["-c", IMPORTED],
    "starts others": ["-c", STARTS],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fails.py").write_text("import main\n\nmain.fail()\n")
    (tmp_path / "main.py").write_text(
        "import os, sys\n\n\ndef fail():\n    raise KeyError('main')\n\n\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], sys.path[0], os.environ.get('LEFT'), __spec__ and __spec__.name)\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys\nsys.custom = sys.orig_argv[1:]\n"
    )
    return tmp_path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", PROGRAMS.values(), ids=PROGRAMS)
def test_a_warm_program_is_what_it_is_cold(folder, words):
    """Exit code, output and errors, arguments, paths and loaded modules are the same."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "site")}
    options = {
        "cwd": folder,
        "env": environ,
        "input": "abc\n",
        "capture_output": True,
        "text": True,
    }
    command = [sys.executable, *words]

    warm = warm_python.run(command, **options)
    cold = subprocess.run(command, check=False, timeout=warm_python.LIMIT_S, **options)

    assert (warm.returncode, warm.stdout, warm.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )
    assert warm_python.is_warm(command, environ)


@pytest.mark.parametrize("variable", ["PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PATH"])
def test_a_warm_program_has_the_variables_and_the_umask_of_its_caller(variable):
    """Also those that an interpreter reads at its start."""
    code = (
        "import os, sys; print(sys.stdout.write_through, type(sys.stderr.buffer).__name__, "
        "sys.dont_write_bytecode, os.umask(0))"
    )
    command = [sys.executable, "-c", code]
    environ = {"PATH": os.environ["PATH"]} | {variable: os.environ["PATH"]}
    before = os.umask(0o027)
    try:
        warm = warm_python.check_output(command, env=environ, text=True)
        cold = subprocess.check_output(command, env=environ, text=True)
    finally:
        os.umask(before)

    assert (warm, warm_python.is_warm(command, environ)) == (cold, True)


def test_a_warm_program_is_imported_into_by_hooks(tmp_path):
    """A finder in front of the others is asked for torch, and its loader is run."""
    code = (
        "import sys\n"
        "class Asked:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('torch', 'torch.optim.sgd'): print(name)\n"
        "sys.meta_path.insert(0, Asked())\n"
        "import torch, torch.optim.sgd\n"
    )
    done = warm_python.check_output([sys.executable, "-c", code], text=True)

    assert done == "torch\n"


def test_a_warm_program_can_be_signalled_and_waited_for():
    """By its process id, while it runs."""
    with warm_python.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout.readline() == "up\n"
        assert program.poll() is None
        os.kill(program.pid, signal.SIGTERM)
        assert program.wait(warm_python.LIMIT_S) == -signal.SIGTERM
        assert program.poll() == -signal.SIGTERM


@pytest.mark.parametrize("variables", [{"PYTHONSAFEPATH": "1"}, {"PYTHONHASHSEED": "0"}], ids=str)
def test_what_cannot_be_emulated_is_started_cold(variables):
    """Variables of the interpreter, and options of it."""
    assert not warm_python.is_warm([sys.executable, "-c", "pass"], variables)
    assert not warm_python.is_warm([sys.executable, "-X", "dev", "-c", "pass"], {})
    assert not warm_python.is_warm(["bash", "-c", "true"], {})
