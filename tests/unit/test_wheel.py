"""The wheel contains what a package index shows of it."""

from __future__ import annotations

import zipfile
from email.parser import Parser

import pytest
from built_wheel import build


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this tree."""
    file = build(tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(file) as content:
        yield content


def read(wheel, name):
    """A file of the wheel's metadata."""
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_classifiers(wheel):
    """Its classifiers name each Python that it is for."""
    about = Parser().parsestr(read(wheel, "METADATA"))
    ending = "Programming Language :: Python :: 3."

    assert about["Requires-Python"] == ">=3.11"
    assert [f"3.{word.removeprefix(ending)}" for word in about.get_all("Classifier")
            if word.startswith(ending)] == ["3.11", "3.12", "3.13", "3.14"]  # fmt: skip


def test_types(wheel):
    """Types reach those who use it."""
    assert "otel_mlperf/py.typed" in wheel.namelist()


def test_page(wheel):
    """What a page about a run is made of, and the licence of what others wrote of it."""
    folder = "otel_mlperf/report/page/assets"
    own = ("page.html.jinja", "page.css", "page.js")
    theirs = ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE", "version.txt")

    wanted = {f"{folder}/{name}" for name in own} | {f"{folder}/uplot/{name}" for name in theirs}
    assert wanted <= set(wheel.namelist())
