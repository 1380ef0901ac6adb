"""The pictures of README and docs, each made from a real run; ``make pictures`` makes them anew.

Pages are drawn by Chromium, terminals by rich, timelines by Perfetto's own interface. Run it on a
quiet machine: the pictures show what was measured.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chromium import chromium
from guides import blocks
from pages import DOCS, ROOT
from perfetto_ui import perfetto_ui
from PIL import Image
from rich.console import Console
from rich.text import Text
from servers.running import wait_until
from terminal_screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = DOCS / "pictures"
SLOW = ROOT / "examples" / "slow_digits.py"
REPAIRS = ["--prepare-once", "--score-every", 20]
TOOL = Path(sys.executable).with_name("otel-mlperf")
LARGEST_BYTES = 150_000
COLORS = 128
WIDE, COLUMNS = 1280, 92
TIMELINE = {"x": 230, "y": 112, "width": 1270, "height": 240}
"""Of Perfetto's interface, in pixels."""
LOADING_BYTES = 20_000
"""A picture of tracks that are still loaded is smaller."""
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font: {char_height}px monospace; line-height: {line_height}px;
font-variant-east-asian: full-width; }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}"
height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
"""Rich's own format loads its font from elsewhere."""


def run(folder: Path, *words: Any) -> None:
    """Run a command in ``folder`` to its end."""
    subprocess.run([*map(str, words)], cwd=folder, env=environment(), check=True)


def environment() -> dict[str, str]:
    """Variables of every program: no server, wide enough terminals."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return own | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}


def in_terminal(folder: Path, *words: Any) -> str:
    """Return what a command prints on a terminal, colours included."""
    screen = Screen([*map(str, words)], environment(), folder, COLUMNS)
    said = screen.read_to_end()
    screen.close()
    return said.replace("\r\n", "\n")


def draw_terminal(path: Path, title: str, said: str) -> None:
    """Write an SVG of a terminal with this text."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(said.rstrip()))
    drawn = console.export_svg(title=title, code_format=SVG, unique_id=path.stem)
    path.write_text(drawn)


def save(path: Path, screenshot: bytes) -> None:
    """Write a screenshot with few colours."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(COLORS)
    image.save(path, optimize=True)


def draw_report(folder: Path, out: Path) -> None:
    """The page of a run with findings, light and dark, and its comparison with the repaired run."""
    run(folder, TOOL, "run", "--name", "slow", SLOW)
    run(folder, TOOL, "run", "--name", "fast", SLOW, *REPAIRS)
    said = in_terminal(folder, TOOL, "compare", "slow", "fast")
    draw_terminal(out / "compare.svg", "otel-mlperf compare slow fast", said)
    run(folder, TOOL, "report", "slow", "--out", folder / "report.html")
    with chromium() as browser:
        for scheme in ("light", "dark"):
            size = {"width": WIDE, "height": 1000}
            with browser.new_page(viewport=size, color_scheme=scheme) as page:
                page.goto((folder / "report.html").as_uri())
                page.wait_for_function("document.querySelectorAll('canvas').length")
                save(out / f"report-{scheme}.png", page.screenshot())


def draw_show(folder: Path, out: Path) -> None:
    """One profiled step with its operators under their sections."""
    run(folder, TOOL, "run", "--profile", "wait=40,active=2", SLOW, "--epochs", 3)
    said = in_terminal(folder, TOOL, "show", "latest", "--step", 42)
    draw_terminal(out / "show.svg", "otel-mlperf show latest --step 42", said)


def draw_ranks(folder: Path, out: Path) -> None:
    """Two ranks: ``top`` while they train, and the timeline of some of their steps."""
    (program,) = (
        block
        for block in blocks((DOCS / "frameworks" / "distributed.md").read_text(), "python")
        if "train_ddp.py" in block
    )
    (folder / "train_ddp.py").write_text(program.replace("range(2)", "range(40)"))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "train_ddp.py",
    ]
    with running(folder, TOOL, "run", "--", *launcher):
        said = wait_until(lambda: shows_steps(in_terminal(folder, TOOL, "top", "--once")))
        draw_terminal(out / "top.svg", "otel-mlperf top", said)
    timeline = folder / "timeline.pftrace"
    run(folder, TOOL, "export", "latest", "--steps", "100-103", "--out", timeline)
    (folder / "shown").mkdir()
    with perfetto_ui(folder / "shown") as interface, interface.open(timeline) as shown:
        shown.expand()
        shown.see("MainThread")
        shown.page.get_by_text("OK", exact=True).click()  # to its cookies
        save(out / "timeline.png", wait_until(lambda: settled(shown.page)))


def settled(page: Any) -> bytes:
    """Return a picture of the timeline once two in a row are equal; empty before that."""
    before, after = (page.screenshot(clip=TIMELINE) for _ in range(2))
    return after if before == after and len(after) > LOADING_BYTES else b""


def shows_steps(said: str) -> str:
    """Return the screen of ``top`` once ranks have a rate of steps; empty before that."""
    return said if "steps/s" in said else ""


@contextmanager
def running(folder: Path, *words: Any) -> Iterator[None]:
    """Run a command beside the block, then wait for its end."""
    with subprocess.Popen([*map(str, words)], cwd=folder, env=environment()) as process:
        try:
            yield
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "report": draw_report,
    "show": draw_show,
    "ranks": draw_ranks,
}


def main() -> None:
    """Make the pictures that are named, or all."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder), FOLDER)
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.stat().st_size:>9,} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
