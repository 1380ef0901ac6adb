"""Registry of the commands; the module of a command is imported when it is used."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable

NAME: Final = "otel-mlperf"
_RUN: Final = "run"
_PANELS: Final = {
    "Record": (_RUN, "profile"),
    "Inspect": ("summary", "findings", "show", "kernels", "top", "runs", "query", "report"),
    "Compare": ("compare",),
    "Export": ("export", "import"),
    "Operate": ("doctor", "serve", "reference"),
}
"""Commands by help panel, in the order of ``--help``.

Each command except ``run`` is a module that contains a function of the same name."""
_COMMANDS: Final = {name: panel for panel, names in _PANELS.items() for name in names}
_ELSEWHERE: Final = {
    "agent": "serve agent", "check": "compare --check", "hot": "summary --functions",
    "loader": "profile --loader", "mcp": "serve mcp", "metrics": "reference metrics",
    "periods": "summary --every 1h", "recover": "doctor --recover", "schema": "reference schema",
    "send": "export --otlp",
}  # fmt: skip
"""Names that are not commands but that users may try, each with the command to use instead."""


class _Lazy(TyperGroup):
    _is_listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in _ELSEWHERE:
            ctx.fail(f"No such command {name!r}. Use '{NAME} {_ELSEWHERE[name]}' instead.")
        if name not in _COMMANDS:
            from difflib import get_close_matches

            if name.endswith(".py"):
                ctx.fail(f"No such command {name!r}. Did you mean '{NAME} {_RUN} {name}'?")
            if close := get_close_matches(name, _COMMANDS, n=1):
                ctx.fail(f"No such command {name!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        function = _run if cmd_name == _RUN else _function_of(cmd_name)
        # The list shows no options, and to build those of all commands takes as long as the rest.
        return _listed(cmd_name, function) if self._is_listing else _as_command(cmd_name, function)


def call(arguments: list[str]) -> None:
    """Run the command in ``arguments``; an invalid command line exits with code 2."""
    app = typer.Typer(
        cls=_Lazy, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback(help=_unwrapped(inspect.getdoc(_about) or ""))(_about)
    command = typer.main.get_command(app)
    try:
        command.main(arguments, prog_name=NAME, standalone_mode=True)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer itself would exit with 1
            raise end.__context__ from None
        if end.code:
            sys.stdout.flush()
            raise


def _run() -> None:
    """Run a program as `python` would, and record it."""
    # Only provides the line in the help: the command is dispatched to cli.run before typer.


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

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
    """Show where the training time goes: record a run, then query it.

    RUN is the name of a run, a prefix of its id, its folder, or `latest` (default).

    Runs are stored in $OTEL_MLPERF_DIR (default: ./otel-runs). Output is as wide as the
    terminal or $COLUMNS; in a pipe or a file, 80 columns.
    """


def _unwrapped(about: str) -> str:
    """Return a docstring with each paragraph in one line, so that only typer wraps the lines."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in about.split("\n\n"))


def _function_of(command: str) -> Callable[..., None]:
    # ``import`` is a reserved word in Python.
    name = "import_" if command == "import" else command
    module = importlib.import_module(f"otel_mlperf.cli.{name}")
    function: Callable[..., None] = getattr(module, name)
    return function


def _as_command(name: str, function: Callable[..., None]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name, help=_help_of(function), rich_help_panel=_COMMANDS[name])(function)
    return typer.main.get_command(app)


def _listed(name: str, function: Callable[..., None]) -> Any:
    return TyperCommand(name, help=_help_of(function), rich_help_panel=_COMMANDS[name])


def _help_of(function: Callable[..., None]) -> str:
    return _unwrapped(inspect.getdoc(function) or "")
