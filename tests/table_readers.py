"""Answers of each reader of a run's tables to the same queries.

A reader takes a run folder, a folder to write into and questions in SQL by name, and gives rows.
Frames and files are read by pandas first: what SQL is asked of them then is what they hold.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import anyio
import duckdb
import warm_python
from mcp import Client, StdioServerParameters
from runs import environment

import otel_mlperf as om

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

Questions = dict[str, str]
Answers = dict[str, list[list[Any]]]
TABLES = ("steps", "sections", "readings", "totals")


def command(folder: Path, name: str, *options: str) -> str:
    """What a command says of a run."""
    call = [sys.executable, "-m", "otel_mlperf", name, str(folder), *options]
    return warm_python.run(
        call, env=environment(folder.parent), capture_output=True, text=True, check=True
    ).stdout


def by_frames(folder: Path, place: Path, questions: Questions) -> Answers:
    """``om.read_run(…).table(…).to_pandas()``."""
    run = om.read_run(folder)
    return _asked({name: run.table(name).to_pandas() for name in TABLES}, questions)


def by_csv(folder: Path, place: Path, questions: Questions) -> Answers:
    """``otel-mlperf export --csv``."""
    command(folder, "export", "--csv", "-o", str(place / "csv"))
    import pandas as pd

    frames = {name: pd.read_csv(place / "csv" / f"{name}.csv") for name in TABLES}
    return _asked(frames, questions)


def by_parquet(folder: Path, place: Path, questions: Questions) -> Answers:
    """``otel-mlperf export --parquet``."""
    command(folder, "export", "--parquet", "-o", str(place / "parquet"))
    import pandas as pd

    frames = {name: pd.read_parquet(place / "parquet" / f"{name}.parquet") for name in TABLES}
    return _asked(frames, questions)


def by_query(folder: Path, place: Path, questions: Questions) -> Answers:
    """``otel-mlperf query``."""
    return {
        name: json.loads(command(folder, "query", sql, "--rows", "1000", "--json"))["rows"]
        for name, sql in questions.items()
    }


def by_assistant(folder: Path, place: Path, questions: Questions) -> Answers:
    """The tool ``query`` of ``otel-mlperf serve mcp``."""
    asked = {name: ("query", {"sql": sql, "rows": 1000}) for name, sql in questions.items()}
    return {name: told["rows"] for name, told in by_tools(folder, asked).items()}


READERS: dict[str, Callable[[Path, Path, Questions], Answers]] = {
    "data frames": by_frames,
    "CSV": by_csv,
    "Parquet": by_parquet,
    "query": by_query,
    "assistant": by_assistant,
}


def by_tools(folder: Path, asked: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What the tools of an assistant answer about a run: to each question a tool, its arguments."""

    async def talk() -> dict[str, Any]:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "otel_mlperf", "serve", "mcp"],
            env=environment(folder.parent),
        )
        run = {"run": json.loads((folder / "run.json").read_text())["id"]}
        async with Client(server) as client:
            answers = {}
            for name, (tool, arguments) in asked.items():
                result = await client.call_tool(tool, run | arguments)
                assert not result.is_error, result.content[0].text
                answers[name] = json.loads(result.content[0].text)
            return answers

    return anyio.run(talk)


def charts_of(page: str) -> dict[str, Any]:
    """The numbers that the charts of a page of ``otel-mlperf report`` draw."""
    _, _, data = page.partition('<script type="application/json" id="data">')
    return json.loads(data.partition("</script>")[0])["charts"]


def _asked(frames: dict[str, pd.DataFrame], questions: Questions) -> Answers:
    with duckdb.connect() as connection:
        for name, frame in frames.items():
            connection.register(name, frame)
        return {
            name: [list(row) for row in connection.execute(sql).fetchall()]
            for name, sql in questions.items()
        }
