"""How does a process of ours load the very package that runs here, and nothing of the program's?

It is started with ``-I``: no variable and no module beside the user's script reaches it. Another
copy of this package that is installed too (``pip install -e``) comes first on such a process's
path, and a copy of another version could not read what this one writes: so the package is loaded
from its file.

The public names of the package come from half of its modules, and are loaded once somebody asks for
one. Nor does it load pandas, where that is installed: pyarrow would, to ask whether a list is a
Series, and that takes 50 MB. Others (W&B) look for it and load it later, if ever: it can be found.
"""

from __future__ import annotations

import os
import sys
from typing import Final

HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that this package lies in."""
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
    """What starts ``main([argument])`` of one of our modules; ``before`` is run first of all."""
    text = before + _LOAD.format(module=module)
    return [sys.executable, "-I", "-c", text, argument, *_import_paths()]


def _import_paths() -> list[str]:
    """Where this package lies, and what it needs."""
    installed = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys([HOME, *installed]))
