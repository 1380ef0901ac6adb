"""Import hooks: calls right after the program imports a module, without importing it first.

A finder at the front of ``sys.meta_path`` lets the other finders find the module and adds a call
after its loader's own work. The module, its spec and its loader stay otherwise unchanged.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once, when the module ``name`` is loaded; immediately if it already is.

    Args:
        name: full name of the module: ``lightning.pytorch``.
        then: must not raise: the exception would be raised in the program's ``import``.
    """
    if name in sys.modules:
        then()
        return
    _waiting.setdefault(name, []).append(then)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def notice_package(name: str) -> None:
    """Make the calls for modules of the loaded package ``name`` that no import has loaded.

    A program may have added them to ``sys.modules`` itself, all at the same time.
    """
    for module in [one for one in _waiting if one.startswith(f"{name}.") and one in sys.modules]:
        _call(module)


class _Finder:
    """Finder that delegates awaited modules to the other finders and follows their loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                _follow(fullname, spec.loader)
                return spec
        return None


_waiting: dict[str, list[Callable[[], None]]] = {}
_finder = _Finder()
# One finder for all names: two finders that delegate the same module would call each other for
# ever.


def _follow(name: str, loader: Loader | None) -> None:
    """Make the calls after the loader has run the module's code, and remove the hook again."""
    try:
        own = vars(loader)
        run_module = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            own.pop("exec_module", None)
            run_module(module)
            _call(module.__name__)

        # Under importlib's own file name the frame is removed from tracebacks together with
        # importlib's frames, so that a broken installation shows the same text as usual.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap_external>"
        )
        # A mere check for the module (`importlib.util.find_spec`) discards this spec: the wait ends
        # when the code has run, not when the module was found.
        own["exec_module"] = exec_module
    except (AttributeError, TypeError) as error:  # a loader that is a class, or of another kind
        internal_error(error)


def _call(name: str) -> None:
    # Modules that integrations load must not cause a full collection of the program earlier.
    collects = gc.isenabled()
    gc.disable()
    try:
        for then in _waiting.pop(name, ()):
            then()
    finally:
        if collects:
            gc.enable()
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
