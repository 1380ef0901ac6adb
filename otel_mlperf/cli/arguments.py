"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run: name, id prefix, path, or `latest`."),
]
OneRunArgument = Annotated[
    str | None, typer.Argument(help="Only this run: name, id prefix or path.")
]
"""Optional run argument of commands that apply to all runs by default."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
