"""The first code that Python runs in a program that ``otel-mlperf run`` has started.

It runs once, in place of the environment's own ``sitecustomize``, which still runs. No error here
may keep the program from running.
"""

import gc
import importlib
import os
import sys


def _run_the_one_behind_us() -> None:
    """Run the environment's own ``sitecustomize``, found as if this folder did not exist."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != folder]
    sys.path_importer_cache.pop(folder, None)
    # The name is removed for the search, else Python would return this module again.
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # Python expects the module that it has just imported


def _begin() -> None:
    # The modules loaded here would otherwise cause a full collection earlier: in the program's
    # first steps, where it looks like a wait. Now it is a collection of the youngest objects, when
    # collections are on again.
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


# The environment's own module comes first: it may add the paths of this package, and start tools
# that must see its imports (coverage). If it raises, Python reports that and continues, and so does
# this module.
try:
    _run_the_one_behind_us()
finally:
    _begin()
