"""Processes that this package starts: their command, and the address space that they may map.

A process loads exactly this package, and nothing of the program's. It is started with ``-I``: no
variable and no module next to the user's script reaches it. Another installed copy of this package
(``pip install -e``) would come first on such a process's path. A copy of another version could not
read what this one writes. The package is therefore loaded from its file.

The public names of the package come from half of its modules, and are loaded once one of them is
accessed. The process does not load pandas either, where that is installed. pyarrow would, to check
whether a list is a Series, and that costs 50 MB. Other libraries (W&B) look for pandas and load it
later, if ever. It can therefore be found.

Libraries map far more than they use, and some end the process without a message where they may not
(RLIMIT_AS, ``ulimit -v``). A limit is mostly set for the program that is recorded. The processes
that we start next to it raise their own limit, as far as they may, and check whether it is enough.
The program keeps its limit. In portable mode no limit is known: macOS enforces none, Windows has
none.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

from otel_mlperf.portability import IS_PORTABLE

with suppress(ImportError):  # Windows
    import resource
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


AGENT_BYTES: Final = 350 << 20
"""Address space that an agent maps in total: with 300 MiB it could not start its threads."""
TABLES_BYTES: Final = 768 << 20
"""Address space that DuckDB maps, for two cores: 740 MiB."""
_UNLIMITED: Final = 1 << 64


def lift_limit() -> None:
    """Raise the limit of this process as far as its parent could permit."""
    if not IS_PORTABLE:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def room_of_next() -> int:
    """Return the bytes that a child process may map, which raises its own limit."""
    return _UNLIMITED if IS_PORTABLE else _bytes(resource.getrlimit(resource.RLIMIT_AS)[1])


def room_here() -> int:
    """Return the bytes that this process may still map."""
    if IS_PORTABLE:
        return _UNLIMITED
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(0, _bytes(resource.getrlimit(resource.RLIMIT_AS)[0]) - used)


def shortage(room_bytes: int, needed_bytes: int) -> str:
    """Return a message if there is too little room; empty if there is enough."""
    if room_bytes >= needed_bytes:
        return ""
    return (
        f"the limit of address space leaves {room_bytes >> 20} MiB, {needed_bytes >> 20} MiB are "
        "required: raise RLIMIT_AS with ulimit -H -v"
    )


def _bytes(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
