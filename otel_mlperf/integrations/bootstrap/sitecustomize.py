"""The first code that Python runs in a program that ``otel-mlperf run`` has started.

It runs once, in place of the environment's own ``sitecustomize``, which still runs. No error here
may keep the program from running.
"""

import gc
import importlib
import os
import sys


def _run_the_one_behind_us() -> None:
    """The environment's own ``sitecustomize``, found as if our folder were not there."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != folder]
    sys.path_importer_cache.pop(folder, None)
    # The name is taken from us for the search, else Python would hand out this module again.
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # Python expects what it has just imported to be there


def _begin() -> None:
    # What we load would else bring a collection of all that the program has nearer: into its first
    # steps, where it is taken for a wait. Now it is one of the youngest, when they are on again.
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


# The environment's own comes first: it may add the paths that we are imported from, and start what
# must see our imports (coverage). If it raises, Python says so and goes on, and so do we.
try:
    _run_the_one_behind_us()
finally:
    _begin()
