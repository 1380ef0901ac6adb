"""Import hooks: callbacks that run right after the program imports a module.

A finder at the front of ``sys.meta_path`` delegates each awaited module to the other finders. It
then hooks the loader, so that the callbacks run after the module's code. The module, its spec and
its loader stay otherwise unchanged.
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
    """Call ``then`` once, when module ``name`` is loaded, or now if it is already loaded.

    Args:
        name: full name of the module: ``lightning.pytorch``.
        then: the callback; must not raise: the exception would propagate from the program's
            ``import``.
    """
    if name in sys.modules:
        then()
        return
    _waiting.setdefault(name, []).append(then)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def notice_package(name: str) -> None:
    """Run the callbacks of modules below ``name`` that were put into ``sys.modules`` directly.

    The import hook does not see modules that the program adds to ``sys.modules`` without an import.
    """
    for module in [one for one in _waiting if one.startswith(f"{name}.") and one in sys.modules]:
        _call(module)


class _Finder:
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
# There must be only one finder for all names: two finders that delegate the same module would call
# each other without end.


def _follow(name: str, loader: Loader | None) -> None:
    try:
        own = vars(loader)
        run_module = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            own.pop("exec_module", None)
            run_module(module)
            _call(module.__name__)

        # With importlib's file name, Python removes this frame from tracebacks like importlib's own
        # frames: the traceback of a failing import stays the same.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap_external>"
        )
        # The callbacks wait for the module's code, not for its spec: a mere check for the module
        # (`importlib.util.find_spec`) finds a spec, but loads nothing.
        own["exec_module"] = exec_module
    except (AttributeError, TypeError) as error:  # e.g. the loader is a class
        internal_error(error)


def _call(name: str) -> None:
    # Collection is disabled: otherwise objects allocated by integrations would trigger a full
    # garbage collection earlier than in the program alone.
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
