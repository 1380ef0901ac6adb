"""Servers that test processes share are started once, and stopped after their last user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

from servers.shared import shared_server

if TYPE_CHECKING:
    from pathlib import Path


class Noted:
    """A server that writes down when it starts and stops."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"

    def start(self) -> None:
        """Notes it."""
        self._note("started")

    def stop(self) -> None:
        """Notes it."""
        self._note("stopped")

    def use(self) -> None:
        """Notes it."""
        self._note("used")

    def _note(self, what: str) -> None:
        with self.notes.open("a") as notes:
            notes.write(f"{what}\n")


def test_processes_that_ask_together_share_one_server(tmp_path):
    """It is stopped when the last of them has left it, whoever started it."""
    together = Barrier(3)

    def user(_):
        with shared_server(tmp_path, Noted) as server:
            together.wait()
            server.use()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(user, range(3)))

    assert (tmp_path / "notes").read_text().split() == ["started", *["used"] * 3, "stopped"]


def test_after_the_last_user_a_new_server_starts(tmp_path):
    """A process that asks late does not get the addresses of a server that has ended."""
    for _ in range(2):
        with shared_server(tmp_path, Noted):
            pass

    assert (tmp_path / "notes").read_text().split() == ["started", "stopped"] * 2
