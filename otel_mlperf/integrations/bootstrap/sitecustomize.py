"""First code that Python runs in a program started by ``otel-mlperf run``.

This module runs once, in place of the environment's own ``sitecustomize``, and runs that one first.
An error here must never keep the program from running.
"""

import gc
import importlib
import os
import sys


def _run_original_sitecustomize() -> None:
    """Run the environment's own ``sitecustomize``, found as if this folder did not exist."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != folder]
    sys.path_importer_cache.pop(folder, None)
    # The entry is removed during the import: otherwise Python would return this module again.
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # Python expects the entry of the module that it is importing


def _begin() -> None:
    # Collection is disabled: otherwise the modules loaded here would trigger a full garbage
    # collection in the program's first steps, where it looks like a wait. Instead, a collection of
    # the youngest generation follows as soon as collection is enabled again.
    collects = gc.isenabled()
    gc.disable()
    try:
        from otel_mlperf.integrations.autostart import begin

        begin()
    except Exception as error:  # noqa: BLE001 - the program runs, recorded or not
        print(f"otel-mlperf: not recorded: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    finally:
        if collects:
            gc.enable()


# The environment's own module must run first: it may add the paths of this package, and start tools
# that must see this package's imports (coverage). If it raises, this package starts all the same,
# and Python reports the exception.
try:
    _run_original_sitecustomize()
finally:
    _begin()
