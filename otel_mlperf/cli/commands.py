"""Registry of the commands, with lazy import of their modules."""

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
_COMMANDS: Final = (
    "summary", "periods", "findings", "show", "compare", "check", "kernels", "hot", "query",
    "report", "export", "import", "runs", "top", "profile", "loader", "metrics", "doctor", "schema",
    "mcp", "send", "recover", "agent",
)  # fmt: skip
"""In the order of ``--help``; each is a module here that has a function of its name."""
_RUN: Final = "run"


class _Lazy(TyperGroup):
    """Loads the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [_RUN, *_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == _RUN:
            return _as_command(_RUN, _run)
        if cmd_name not in _COMMANDS:
            return None
        # Python keeps the word ``import`` for itself.
        name = "import_" if cmd_name == "import" else cmd_name
        module = importlib.import_module(f"otel_mlperf.cli.{name}")
        return _as_command(cmd_name, getattr(module, name))


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

    Text is as wide as the terminal, or as $COLUMNS says; in a pipe or a file it has 80 columns.
    """


def _as_command(name: str, function: Callable[..., None]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return typer.main.get_command(app)
