"""How is something done right after the program imports a module, without importing it first?

A finder in front of the others lets them find the module and adds a call behind its loader's own
work. The module, its spec and its loader stay what they would have been.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, then: Callable[[], None]) -> None:
    """Calls ``then`` once, when the top-level module ``name`` is loaded; now if it already is."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """Waits for one module, once."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _follow(spec.loader, self._then)
        return spec


def _follow(loader: Loader, then: Callable[[], None]) -> None:
    """Calls ``then`` after the loader has run the module's code, and takes itself off again."""
    run_module = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.__dict__["exec_module"]
        run_module(module)
        then()

    # Under importlib's own file name the frame is cut from tracebacks together with importlib's,
    # so that a broken installation shows the same text as without us.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap_external>"
    )
    loader.__dict__["exec_module"] = exec_module
