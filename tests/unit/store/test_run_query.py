"""A query over a run's tables is answered from them, and accesses nothing else."""

from __future__ import annotations

import json
import resource
import signal
import subprocess

import pytest
from run_folders import digits

from otel_mlperf.errors import QueryError
from otel_mlperf.own_processes import command
from otel_mlperf.report.query_table import render_query
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.run_query import MAX_MEMORY_BYTES, ask, run_query_in_process
from otel_mlperf.store.table_reader import Store


@pytest.fixture
def run(tmp_path):
    """A run of 40 steps in a folder whose name SQL must not end at."""
    return read_run(digits(tmp_path / "it's here").write())


def test_a_select_is_answered_with_names_and_types_of_its_columns(run):
    """As DuckDB calls them."""
    answer = ask(run, "SELECT phase, count(*) AS n FROM steps GROUP BY phase")

    assert [(column.name, column.type) for column in answer.columns] == [
        ("phase", "VARCHAR"),
        ("n", "BIGINT"),
    ]
    assert (answer.rows, answer.is_complete) == ([["train", 40]], True)


def test_it_is_said_where_there_are_more_rows(run):
    """Exactly as many as there are is all of them."""
    for most, complete in ((39, False), (40, True)):
        answer = ask(run, "FROM steps", most)
        assert (len(answer.rows), answer.is_complete) == (most, complete)


def test_values_are_what_json_has(run):
    """Sums beyond 64 bits and decimals are floating point, dates text, and long texts are cut."""
    ((large, decimal, date, nested, text),) = ask(
        run,
        "SELECT sum(duration_ns) * 1000000000000000, 1.5, DATE '2026-11-23', {'a': [1, NULL]}, "
        "repeat('x', 20000) FROM steps",
    ).rows

    assert (decimal, date, nested) == (1.5, "2026-11-23", {"a": [1, None]})
    assert isinstance(large, float)
    assert len(text) == 10_001


@pytest.mark.parametrize("sql", ["DESCRIBE steps", "SHOW TABLES", "WITH a AS (FROM steps) FROM a"])
def test_what_only_reads_is_answered(run, sql):
    """Whatever the way in which it is written."""
    assert ask(run, sql).rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/proc/self/environ')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT getenv('HOME')",
        "ATTACH '{folder}/new.db'",
        "COPY steps TO '{folder}/new.csv'",
        "EXPORT DATABASE '{folder}/new'",
        "CREATE TABLE mine AS SELECT 1",
        "INSERT INTO steps SELECT * FROM steps",
        "DELETE FROM steps",
        "DROP VIEW steps",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET threads = 64",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT 1; SELECT 2",
        "",
        "SELEC 1",
    ],
)
def test_what_reaches_further_is_refused_and_leaves_nothing(run, tmp_path, sql):
    """Neither another file, nor a write, nor another setting; and the run is as it was."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(QueryError):
        ask(run, sql.format(folder=tmp_path))

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_files_of_another_run_are_out_of_reach(run, tmp_path):
    """Also those that the package itself wrote."""
    other = read_run(digits(tmp_path / "other").write())
    (file,) = (other.path / "tables" / "steps").glob("*.parquet")
    assert Store(other.path).rows(f"SELECT count(*) FROM '{file}'") == [(40,)]

    with pytest.raises(QueryError, match="only its own tables"):
        ask(run, f"SELECT * FROM '{file}'")


def test_a_query_without_end_is_stopped(run):
    """It says what would make it shorter."""
    with pytest.raises(QueryError, match="stopped after"):
        run_query_in_process(run, "SELECT count(*) FROM range(1000000000000000)", limit_s=0.01)


def test_a_query_that_cannot_be_interrupted_is_stopped(run):
    """A function over one long value is: DuckDB alone would let it end."""
    endless = "SELECT regexp_replace(repeat('a', 1000000000), '(a|b)*', 'x')"

    with pytest.raises(QueryError, match="stopped after 1 s"):
        run_query_in_process(run, endless, limit_s=1.0)


def test_the_process_that_answers_ends_when_nobody_waits_for_it(run):
    """As when the one that asked was killed."""
    endless = "SELECT count(*) FROM range(1000000000000000)"
    asked = json.dumps([str(run.path), endless, 1, 0.5]).encode()

    done = subprocess.run(command("otel_mlperf.store.run_query", ""), input=asked, check=False)

    assert done.returncode == -signal.SIGALRM


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(x) FROM range(1000000000) t(x)",
        "SELECT unnest([range(300000000)])",
        "SELECT repeat('x', 3000000000)",
    ],
)
def test_a_query_does_not_take_more_memory_than_it_may(run, sql):
    """Also where the values are Python's: the one that asked goes on, and says what is too much."""
    with pytest.raises(QueryError, match=r"(?i)memory|may use 2560 MiB"):
        run_query_in_process(run, sql, limit_s=300.0)

    used_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    assert used_bytes < MAX_MEMORY_BYTES + (256 << 20)


def test_an_answer_from_its_own_process_is_the_same(run):
    """Whatever the types of its columns, and however it is refused."""
    sql = "SELECT n, phase, duration_ns / 7, NULL, DATE '2026-11-23' FROM steps ORDER BY n"

    assert run_query_in_process(run, sql, 7) == ask(run, sql, 7)
    with pytest.raises(QueryError, match="INSERT is not permitted"):
        run_query_in_process(run, "INSERT INTO steps SELECT * FROM steps")


def test_people_get_a_table(run):
    """Numbers to the right, what is not known as a dash, and no control character of a text."""
    answer = ask(
        run, "SELECT number, NULL AS none, chr(27) || '[2J' AS text FROM steps ORDER BY 1", 2
    )

    assert render_query(answer) == (
        "number  none  text\n"
        "     0  –     ?[2J\n"
        "     1  –     ?[2J\n"
        "more rows exist; only 2 are shown (--rows)\n"
    )
