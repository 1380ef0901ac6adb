"""Command of a child process that loads exactly this package, and nothing of the program's.

The process is started with ``-I``: no variable and no module next to the user's script reaches it.
Another installed copy of this package (``pip install -e``) would come first on such a process's
path. A copy of another version could not read what this one writes. The package is therefore loaded
from its file.

The public names of the package come from half of its modules, and are loaded once one of them is
accessed. The process does not load pandas either, where that is installed. pyarrow would, to check
whether a list is a Series, and that costs 50 MB. Other libraries (W&B) look for pandas and load it
later, if ever. It can therefore be found.
"""

from __future__ import annotations

import os
import sys
from typing import Final

HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Folder of this package."""
_LOAD: Final = """\
import importlib.util, sys
sys.path += sys.argv[2:]
class NoPandas:
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, NoPandas) if name == "pandas" else None
    def create_module(spec):
        return None
    def exec_module(module):
        raise ModuleNotFoundError("pandas")
sys.meta_path.insert(0, NoPandas)
file = sys.argv[2] + "/otel_mlperf/__init__.py"
spec = importlib.util.spec_from_file_location("otel_mlperf", file)
sys.modules["otel_mlperf"] = package = importlib.util.module_from_spec(spec)
def load(name):
    if name.startswith("__") or importlib.util.find_spec("otel_mlperf." + name):
        raise AttributeError(name)
    del package.__getattr__
    spec.loader.exec_module(package)
    return getattr(package, name)
package.__getattr__ = load
from {module} import main
sys.exit(main(sys.argv[1:2]))
"""


def command(module: str, argument: str, *, before: str = "") -> list[str]:
    """Return the command that runs ``main([argument])`` of a module; ``before`` runs first."""
    text = before + _LOAD.format(module=module)
    return [sys.executable, "-I", "-c", text, argument, *_import_paths()]


def _import_paths() -> list[str]:
    """Return the folders of this package and of its dependencies."""
    installed = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys([HOME, *installed]))
