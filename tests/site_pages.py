"""Pages of the documentation site, their links, anchors and place in its navigation.

``make docs`` builds the site from copies of the pages and of the files that they link to. The
copies keep the folders of the repository, so that each relative link is valid in both places.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
"""Every page, relative to the repository."""
_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"``[^\n]+?``|`[^`\n]*`")
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def without_code(text: str) -> str:
    """Return Markdown without its code, in which brackets are no links."""
    return _INLINE_CODE.sub("code", _FENCED.sub("", text))


def links(text: str) -> list[str]:
    """Return the targets of a page's relative links and pictures, anchors included."""
    targets = [first or second for first, second in _LINK.findall(without_code(text))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Return the ids of a page's headings, as GitHub and the site's generator derive them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        copies = (f"{slug}-{number}" if number else slug for number in range(1000))
        found.add(next(copy for copy in copies if copy not in found))
    return found


def listed(nav: Any = None) -> Iterator[str]:
    """Yield the pages of the navigation in its order."""
    for entry in SITE["nav"] if nav is None else nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else listed(target)


def linked_files() -> set[Path]:
    """Return the files other than pages that pages link to, show or are styled by."""
    found = {Path(style) for style in SITE["extra_css"]}
    for page in PAGES:
        for target in links((ROOT / page).read_text()):
            path = (ROOT / page.parent / target.partition("#")[0]).resolve()
            if path.is_file() and path.suffix != ".md":
                found.add(path.relative_to(ROOT))
    return found


def main() -> None:
    """Copy pages and linked files into the folder from which the site is built."""
    folder = ROOT / SITE["docs_dir"]
    shutil.rmtree(folder, ignore_errors=True)
    for path in [*PAGES, *sorted(linked_files())]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path)


if __name__ == "__main__":
    main()
