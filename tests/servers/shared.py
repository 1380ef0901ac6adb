"""Servers that all test processes of a run share: the first that asks starts them."""

from __future__ import annotations

import fcntl
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class _Startable(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=_Startable)


@contextmanager
def shared_server(folder: Path, make: Callable[[Path], S]) -> Iterator[S]:
    """Yield the server that ``make`` makes in ``folder``, running, one for all processes.

    ``folder`` is the same in all of them. The process that started the server stops it at its end,
    after the others have left it; who comes later starts a new one. The others have a copy, which
    knows the addresses and cannot stop it.
    """
    folder.mkdir(exist_ok=True)
    with (folder / "election").open("w") as election, (folder / "users").open("w") as users:
        fcntl.flock(election, fcntl.LOCK_EX)
        server, is_ours = _find_or_start(folder, make)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(election, fcntl.LOCK_UN)
        try:
            yield server
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if is_ours:
                fcntl.flock(election, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_EX)
                (folder / "server").unlink()
                server.stop()


def _find_or_start(folder: Path, make: Callable[[Path], S]) -> tuple[S, bool]:
    place = folder / "server"
    if place.exists():
        server: S = pickle.loads(place.read_bytes())
        return server, False
    server = make(folder)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    place.write_bytes(pickle.dumps(server))
    return server, True
