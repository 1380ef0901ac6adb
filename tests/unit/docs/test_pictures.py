"""The pictures of README and docs exist, are small, and can be made anew."""

from __future__ import annotations

import re

import pictures
import pytest
from PIL import Image

PAGES = [pictures.ROOT / "README.md", pictures.DOCS / "tutorial.md"]
NAMED = {
    name
    for page in PAGES
    for name in re.findall(r"pictures/([\w-]+\.(?:png|svg))", page.read_text())
}


def test_pictures_are_small_files_without_addresses():
    """Each one that README and tutorial show is committed, and loads nothing from elsewhere."""
    files = {path.name: path for path in pictures.FOLDER.iterdir()}

    assert files.keys() == NAMED
    for path in files.values():
        assert path.stat().st_size <= pictures.LARGEST_BYTES
        urls = re.findall(r"https?://[\w./]+", path.read_text()) if path.suffix == ".svg" else []
        assert set(urls) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("report", ["compare.svg", "report-dark.png", "report-light.png"]),
        ("show", ["show.svg"]),
        ("ranks", ["timeline.png", "top.svg"]),
    ],
)
def test_pictures_are_made_by_commands_that_work(tmp_path, name, made):
    """What ``make pictures`` runs still ends with a picture that shows something."""
    out = tmp_path / "out"
    out.mkdir()

    pictures.PICTURES[name](tmp_path, out)

    assert sorted(path.name for path in out.iterdir()) == made
    for path in out.iterdir():
        if path.suffix == ".png":
            assert len(Image.open(path).convert("RGB").getcolors(1 << 24)) > 20
        else:
            assert "forward" in path.read_text() or "rank" in path.read_text()
