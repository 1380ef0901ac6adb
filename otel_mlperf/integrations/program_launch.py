"""Replacement of this process by the program to record.

This module checks that the program exists, adds the start request to the environment, and replaces
the process: no process of this package remains between the program and its parent.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from otel_mlperf.errors import NoSuchProgram, UsageError
from otel_mlperf.integrations.start_request import Autostart, Program
from otel_mlperf.integrations.withheld_environment import describe_withheld
from otel_mlperf.settings.config import LEVEL, PROFILE
from otel_mlperf.settings.load_config import load_config

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProgramRequest(NamedTuple):
    """Program to start, and how it is recorded."""

    name: str | None
    command: list[str]
    """Program and arguments; a script or module comes without its interpreter."""
    is_command: bool
    """Whether the command is started unchanged, instead of with this interpreter."""
    profile: str = ""
    """Profiler schedule, which overrides that of the environment; empty: no override."""
    level: str = ""
    """Recording level, which overrides that of the environment; empty: no override."""


def become_program(request: ProgramRequest) -> NoReturn:
    """Replace this process by the program.

    Raises:
        ConfigError: the settings are wrong; the program itself would report this too late.
        NoSuchProgram: there is no such script, module or command.
        UsageError: this interpreter was started with options that prevent recording.
    """
    command = request.command if request.is_command else _python(request.command)
    path = shutil.which(command[0])
    if path is None:
        hint = "check the spelling"
        if Path(command[0]).is_file():
            hint = f"for a script, omit the --: otel-mlperf run {command[0]}"
        raise NoSuchProgram(f"run: no command {command[0]!r} on PATH; {hint}")
    config = load_config(overrides={"level": request.level} if request.level else None)
    if not config.disabled and (reason := describe_withheld(command, path)):
        print(f"otel-mlperf: not recorded: {reason}", file=sys.stderr)  # noqa: T201
    autostart = Autostart(
        scope="programs" if request.is_command or _is_launcher(request.command) else "this",
        name=request.name,
        python_path=os.environ.get("PYTHONPATH"),
        pid=os.getpid(),
    )
    for stream in (sys.stdout, sys.stderr):  # buffered output would be lost
        if stream is not None:  # unless the shell closed it (2>&-)
            stream.flush()
    environ = autostart.put(os.environ)
    if request.profile:
        environ[PROFILE] = request.profile
    if request.level:
        environ[LEVEL] = request.level
    os.execve(path, command, environ)


def _is_launcher(program: Sequence[str]) -> bool:
    """Return whether a script or module only starts programs that are to be recorded."""
    is_module = program[0] == "-m"
    named = Program("module", program[1]) if is_module else Program("script", program[0])
    return program[0] not in {"-", "-c"} and not named.is_recorded


def _python(program: Sequence[str]) -> list[str]:
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError(
            "run: this Python was started with -E, -I or -S, which prevent recording; start Python "
            "without these options"
        )
    if program[0] == "-m":
        _check_module(program[1])
    elif program[0] not in {"-", "-c"}:
        _check_script(program[0])
    return [sys.executable, *interpreter_options(sys.argv, sys.orig_argv), *program]


def interpreter_options(argv: Sequence[str], original: Sequence[str]) -> list[str]:
    """Return the interpreter's options, such as ``-u`` in ``python -u -m otel_mlperf``.

    ``argv``, ``original``: ``sys.argv`` and ``sys.orig_argv``.
    """
    at = len(original) - len(argv)
    options = list(original[1:at])
    own = original[at]
    if own.startswith("-"):  # -mNAME
        options.append(own.partition("m")[0])
    elif options and options[-1].startswith("-") and options[-1].endswith("m"):  # -m, or -um
        options.append(options.pop()[:-1])
    return [option for option in options if option != "-"]


def _check_script(script: str) -> None:
    path = Path(script)
    if path.is_dir() and not (path / "__main__.py").exists():
        raise NoSuchProgram(f"run: {script} is a folder without __main__.py; {_scripts_in(path)}")
    if path.exists():
        return
    if shutil.which(script) is not None:
        raise NoSuchProgram(
            f"run: no script {script} in {Path.cwd()}; to run a command, write -- before the "
            f"command: otel-mlperf run -- {script}"
        )
    raise NoSuchProgram(f"run: no script {script} in {Path.cwd()}; {_scripts_in(Path())}")


def _scripts_in(folder: Path) -> str:
    scripts = sorted(folder.glob("*.py"))[:5]
    listed = ", ".join(map(str, scripts))
    return f"scripts here: {listed}" if scripts else "this folder contains no scripts"


def _check_module(module: str) -> None:
    """Raise if the top-level module is missing; Python itself checks for submodules."""
    top = module.partition(".")[0]
    is_built_in = top in sys.builtin_module_names
    if not is_built_in and PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        raise NoSuchProgram(
            f"run: no module {top!r} in {Path.cwd()} or in {sys.prefix}; "
            "check the spelling, and that the module is installed in this environment"
        )
