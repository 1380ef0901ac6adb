"""``docs/reading-runs.md`` has each column of each table, and no other."""

from __future__ import annotations

import re

import pytest
from pages import DOCS

from otel_mlperf.tables import TABLES

TABLE_OF = {"steps": "steps", "sections": "sections", "readings": "readings", "values": "values",
            "marks": "marks", "kernels": "totals"}  # fmt: skip
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (yes|) ?\| (.*) ?\|$", re.MULTILINE)


@pytest.mark.parametrize("call", TABLE_OF)
def test_columns_are_those_of_the_schema(call):
    """Name, type and whether it may be missing are those of the schema, in its order."""
    part = DOCS.joinpath("reading-runs.md").read_text().partition(f"\n## {call}()\n")[2]
    listed = [row[:3] for row in ROW.findall(part.partition("\n## ")[0])]

    assert listed == [
        (column.name, "text" if column.type == "word" else column.type, "yes" * column.null)
        for column in TABLES[TABLE_OF[call]]
    ]
