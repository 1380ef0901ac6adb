"""Which commands are there, and where does each of them lie?"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable

NAME: Final = "otel-mlperf"
_COMMANDS: Final = {
    "summary": "summary",
    "show": "show",
    "kernels": "kernels",
    "export": "export",
    "import": "import_",
    "runs": "runs",
    "top": "top",
    "profile": "profile",
    "metrics": "metrics",
    "doctor": "doctor",
    "send": "send",
    "recover": "agent",
    "agent": "agent",
}
"""Command to the module that has a function of the same name, in the order of ``--help``.

``import_`` has its underscore because Python keeps the word for itself.
"""
_RUN: Final = "run"

RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name, beginning of the id, path, or `latest`."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class _Lazy(TyperGroup):
    """Loads the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [_RUN, *_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == _RUN:
            return _as_command(_RUN, _run)
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"otel_mlperf.cli.{_COMMANDS[cmd_name]}")
        function = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return _as_command(cmd_name, function)


def call(arguments: list[str]) -> None:
    """Runs one command; a wrong command line exits with 2."""
    app = typer.Typer(
        cls=_Lazy, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_about)
    command = typer.main.get_command(app)
    try:
        command.main(arguments, prog_name=NAME, standalone_mode=True)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which typer ends with 1 by itself
            raise end.__context__ from None
        if end.code:
            if sys.stdout is not None:
                sys.stdout.flush()
            raise


def _run() -> None:
    """Run a program as `python` would, and record it."""
    # Only its line in the help is needed here: ``main`` hands the command itself to cli.run.


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"{NAME} {importlib.metadata.version(NAME)}")
        raise typer.Exit


def _about(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Where does the training time go? Record a run, then ask it.

    RUN is a run's name, the beginning of its id, its folder, or `latest`, the default.
    Runs lie in $OTEL_MLPERF_DIR, else in ./otel-runs.
    """


def _as_command(name: str, function: Callable[..., None]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return typer.main.get_command(app)
