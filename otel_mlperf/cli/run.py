"""``otel-mlperf run``: how is a program recorded that does not know of it?

This process becomes ``python SCRIPT``: it looks whether the program exists, puts what the
program's interpreter has to know into the environment, and replaces itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from otel_mlperf.config import PROFILE, load_config
from otel_mlperf.errors import ConfigError, NoSuchProgram, UsageError
from otel_mlperf.integrations.autostart import Autostart
from otel_mlperf.profile_schedule import schedule_text

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """\
Usage: otel-mlperf run [OPTIONS] SCRIPT [ARGUMENTS]...
       otel-mlperf run [OPTIONS] -m MODULE [ARGUMENTS]...
       otel-mlperf run [OPTIONS] -- COMMAND [ARGUMENTS]...

Run a program as `python` would, and record it. Steps, data wait, forward, backward and optimizer of
a PyTorch loop are seen from outside; a program that uses otel_mlperf itself is recorded as it says.
Everything after SCRIPT, MODULE or COMMAND belongs to the program.

With `--`, COMMAND is started as it is, and the Python programs that it starts are recorded:

  otel-mlperf run train.py --lr 1e-3
  otel-mlperf run -m package.train --lr 1e-3
  otel-mlperf run -- torchrun --nproc-per-node 2 train.py --lr 1e-3
  torchrun --nproc-per-node 2 -m otel_mlperf run train.py --lr 1e-3

Options:
  --name NAME         what the run is called; the script's or module's name by default
  --profile SCHEDULE  steps that torch.profiler records, as in wait=10,warmup=1,active=3,repeat=2
                      (the words of otel_mlperf.torch_profile), or `on`
  --help              show this and exit

Settings come from the environment: OTEL_MLPERF_* and OTEL_*.
"""


_VALUES: Final = {"--name": "NAME", "--profile": "SCHEDULE"}


class Request(NamedTuple):
    """What the command line asks for."""

    name: str | None
    command: list[str]
    """The program and its arguments; a script or module without the interpreter before it."""
    is_command: bool
    """Whether it is to be started as it is, instead of by this interpreter."""
    profile: str = ""
    """A profiler schedule, instead of that of the environment."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes the program that ``arguments`` name; those are what follows ``run``.

    Raises:
        ConfigError: the settings are wrong, which the program could only say too late.
        NoSuchProgram: there is no such script, module or command.
        UsageError: the options before the program are wrong, or there is none.
    """
    if arguments and arguments[0] in {"--help", "-h"}:
        print(USAGE, end="")
        sys.exit(0)
    request = parse_arguments(arguments)
    command = request.command if request.is_command else _python(request.command)
    path = shutil.which(command[0])
    if path is None:
        raise NoSuchProgram(f"run: no command {command[0]!r} on PATH; check its spelling")
    load_config()
    told = Autostart(
        scope="programs" if request.is_command else "this",
        name=request.name,
        python_path=os.environ.get("PYTHONPATH"),
    )
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # what the shell closed (2>&-)
            stream.flush()
    environ = told.put(os.environ)
    if request.profile:
        environ[PROFILE] = request.profile
    os.execve(path, command, environ)


def run(program: list[str]) -> None:
    """Run a program as `python` would, and record it."""
    main(program)


def parse_arguments(arguments: Sequence[str]) -> Request:
    """Our options up to the program, and the program with all that follows it."""
    rest = list(arguments)
    given: dict[str, str] = {}
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option, _, value = rest.pop(0).partition("=")
        if option not in _VALUES:
            raise UsageError(f"run: no such option {option}; the program's own come after it")
        given[option] = value or (rest.pop(0) if rest else "")
        if not given[option]:
            word = _VALUES[option]
            raise UsageError(f"run: {option} needs a {word.lower()}: {option} {word}")
    is_command = rest[:1] == ["--"]
    if is_command:
        rest.pop(0)
    if not rest or rest == ["-m"]:
        raise UsageError("run: nothing to run; name a script, -m MODULE or -- COMMAND")
    if not is_command and rest[0].startswith("-") and rest[0] != "-m":
        raise UsageError(
            f"run: no such option {rest[0]}; Python's own go before: python {rest[0]} …"
        )
    return Request(given.get("--name"), rest, is_command, _schedule(given.get("--profile", "")))


def _schedule(text: str) -> str:
    try:
        return schedule_text(text)
    except ConfigError as error:
        raise UsageError(f"run: --profile {text}: {error}") from None


def _python(program: Sequence[str]) -> list[str]:
    """The command that runs a script or module with this interpreter and its options."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError(
            "run: this Python was started with -E, -I or -S, which keep recording from starting; "
            "start it without"
        )
    if program[0] == "-m":
        _check_module(program[1])
    else:
        _check_script(program[0])
    return [sys.executable, *interpreter_options(sys.argv, sys.orig_argv), *program]


def interpreter_options(argv: Sequence[str], original: Sequence[str]) -> list[str]:
    """What was said to Python before our own name: ``-u -X dev`` of ``python -u -X dev -m us``."""
    at = len(original) - len(argv)
    options = list(original[1:at])
    own = original[at]
    if own.startswith("-"):  # -mus, or -umus
        options.append(own.partition("m")[0])
    elif options and options[-1].startswith("-") and options[-1].endswith("m"):  # -m us, or -um us
        options.append(options.pop()[:-1])
    return [option for option in options if option != "-"]


def _check_script(script: str) -> None:
    path = Path(script)
    if path.exists():
        return
    found = sorted(Path().glob("*.py"))[:5]
    here = f"scripts here: {', '.join(map(str, found))}" if found else "there are no scripts here"
    raise NoSuchProgram(f"run: no script {script} in {Path.cwd()}; {here}")


def _check_module(module: str) -> None:
    """Raises for a top-level module that is nowhere; what is inside it is for Python to find."""
    top = module.partition(".")[0]
    is_built_in = top in sys.builtin_module_names
    if not is_built_in and PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        raise NoSuchProgram(
            f"run: no module {top!r} in {Path.cwd()} or in {sys.prefix}; "
            "check its spelling, or whether it is installed in this environment"
        )
