"""The site's navigation lists every page, and each relative link of a page resolves."""

from __future__ import annotations

import re

import pytest
import site_pages
from site_pages import PAGES, ROOT, SITE

TEXTS = {page: (ROOT / page).read_text() for page in PAGES}


def test_the_navigation_lists_every_page_once():
    """A new page cannot be forgotten, and no entry leads nowhere."""
    assert sorted(site_pages.listed()) == sorted(map(str, PAGES))


def test_the_navigation_has_the_four_kinds_of_documentation():
    """Next to them, contributors have a part of their own."""
    assert [title for entry in SITE["nav"] for title in entry] == [
        "Home", "Tutorial", "How-to guides", "Reference", "Explanation", "Development",
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_and_anchors_resolve(page):
    """Each relative link names an existing file and, in a page, an existing heading."""
    wrong = []
    for target in site_pages.links(TEXTS[page]):
        name, _, anchor = target.partition("#")
        path = (ROOT / page.parent / name).resolve() if name else ROOT / page
        is_page = path.suffix == ".md" and path.is_file()
        if not path.is_file() or (
            anchor and is_page and anchor not in site_pages.anchors(path.read_text())
        ):
            wrong.append(target)

    assert wrong == []


def test_a_link_to_nothing_is_found():
    """Code is passed over; anchors are those of headings without code and links."""
    text = (
        "# A `b`, [c](d.md)\n\n`[x](y.md)` [e](f.md#g)\n\n```md\n# h\n[i](j.md)\n```\n## A `b`, c\n"
    )

    assert site_pages.links(text) == ["d.md", "f.md#g"]
    assert site_pages.anchors(text) == {"a-b-c", "a-b-c-1"}


def test_pages_and_theme_load_nothing_from_elsewhere():
    """A reader's browser sends no request to another host: no fonts, no pictures, no scripts."""
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE
    for style in SITE["extra_css"]:
        assert not re.search(r"url\(|@import", (ROOT / style).read_text())
    for page, text in TEXTS.items():
        loaded = re.findall(r"!\[[^\]]*\]\(https?:|(?:src|srcset)=\"(?:https?:)?//", text)
        assert loaded == [], page
