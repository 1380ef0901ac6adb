"""The pages about the code name only what exists."""

from __future__ import annotations

import re
import tomllib

import named_places
import pages
import pytest

HOUSE = sorted(path for path in [*pages.DOCS.glob("[A-Z]*.md"), *pages.DOCS.glob("decisions/*.md")])
"""Pages about the code; those about its use are held by ``test_pages``."""


@pytest.mark.parametrize("path", HOUSE, ids=lambda path: path.stem)
def test_files_and_names_are_there(path):
    """Each file exists, each name behind it is defined in it, each name alone is in the package."""
    assert named_places.wrong(path.read_text()) == []


def test_what_is_not_there_is_found():
    """A file, a name of a file, a method, a name alone and a command that nobody has."""
    text = (
        "`agent/intake/nowhere.py`, `journal/layout.py` `Sheep`, `journal/layout.py` `Shape.wool`; "
        "`UnheardOf`, `otel-mlperf graze`, `Recorder`; `journal/layout.py` `Shape.of_rows`"
    )

    assert sorted(named_places.wrong(text)) == [
        "UnheardOf", "agent/intake/nowhere.py", "journal/layout.py Shape.wool",
        "journal/layout.py Sheep", "otel-mlperf graze",
    ]  # fmt: skip


def test_the_tree_shows_every_folder():
    """Each folder of the package is in the picture of the parts, and no other is."""
    (tree, *_) = re.findall(
        r"```\n(.*?)```", (pages.DOCS / "ARCHITECTURE.md").read_text(), re.DOTALL
    )
    folders = [path.parent for path in named_places.PACKAGE.rglob("__init__.py")]
    parts = [path.relative_to(named_places.PACKAGE).parts for path in folders]

    shown = set(re.findall(r"(\w+)/", tree))
    assert {part[-1] for part in parts if 1 <= len(part) <= 2} - shown == set()
    assert shown - {name for part in parts for name in part} == set()


def test_the_map_is_one_page():
    """Whoever opens it reads it."""
    assert len((pages.DOCS / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_the_glossary_is_short():
    """Most names are terms of the field, which need no explanation."""
    entries = re.findall(
        r"^\| (?!term |---)", (pages.DOCS / "GLOSSARY.md").read_text(), re.MULTILINE
    )

    assert 20 < len(entries) <= 35


def test_imports_point_as_the_contract_says():
    """The layers of the page are those of ``pyproject.toml``, in their order."""
    text = (pages.DOCS / "ARCHITECTURE.md").read_text().partition("Imports point one way")[2]
    told = text.partition(":\n")[2].partition(". ")[0]
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [
        contract["layers"]
        for contract in project["contracts"]
        if contract.get("containers") == ["otel_mlperf"]
    ]

    assert [sorted(re.findall(r"\w+", layer)) for layer in told.split("→")] == [
        sorted(re.findall(r"\w+", layer)) for layer in layers if layer != "__main__"
    ]
