"""Counts of a program's sections, as far as the program itself determines them."""

from __future__ import annotations

from otel_mlperf import names


def count_calls(store, where, **values):
    """Calls by name, in the order of the names, without the run and collections of garbage.

    A collection that takes long enough is a section too; when there is one, nobody knows.
    """
    sql = (
        f"SELECT name, sum(count)::BIGINT FROM sections WHERE {where} "
        "AND category NOT IN ($run, $collections) GROUP BY name ORDER BY name"
    )
    return dict(store.rows(sql, run=names.RUN, collections=names.GARBAGE_COLLECTION, **values))
