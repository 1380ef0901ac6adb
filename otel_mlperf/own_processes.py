"""Command line and address space limit of the processes that this package starts.

- A process loads this copy of the package, and no code of the user's program. It is started with
  ``-I``, so that neither variables nor modules next to the user's script affect it. The package is
  loaded from its file: another installed copy (``pip install -e``) would precede it on the import
  path, and a copy of another version could not read the data of this one.
- The package's public names, which require half of its modules, are loaded only when accessed.
- The process does not import pandas: pyarrow would import it to check whether a list is a Series,
  which costs 50 MB. pandas can still be found, because other libraries (W&B) check for it and may
  import it later.

Libraries map far more memory than they use, and some end the process without a message if the limit
(RLIMIT_AS, ``ulimit -v``) is reached. Such a limit is usually set for the user's program, for which
it stays unchanged. The processes that this package starts raise their own limit as far as possible,
and check whether it is sufficient. In portable mode no limit is known: macOS does not enforce it,
and Windows has none.
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
"""Folder that contains this package."""
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
    """Return the command that runs ``main([argument])`` of a module in a new process.

    ``before`` is Python code to run first.
    """
    text = before + _LOAD.format(module=module)
    return [sys.executable, "-I", "-c", text, argument, *_import_paths()]


def _import_paths() -> list[str]:
    installed = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys([HOME, *installed]))


AGENT_BYTES: Final = 350 << 20
"""Address space that an agent requires; with 300 MiB it could not start its threads."""
TABLES_BYTES: Final = 768 << 20
"""Address space that DuckDB requires (with two cores it maps 740 MiB)."""
_UNLIMITED: Final = 1 << 64


def lift_limit() -> None:
    """Raise the limit of this process's address space as far as permitted (to the hard limit)."""
    if not IS_PORTABLE:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


def room_of_next() -> int:
    """Return how many bytes of address space a child process can map after raising its limit."""
    return _UNLIMITED if IS_PORTABLE else _bytes(resource.getrlimit(resource.RLIMIT_AS)[1])


def room_here() -> int:
    """Return how many more bytes of address space this process can map."""
    if IS_PORTABLE:
        return _UNLIMITED
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(0, _bytes(resource.getrlimit(resource.RLIMIT_AS)[0]) - used)


def shortage(room_bytes: int, needed_bytes: int) -> str:
    """Return a message if ``room_bytes`` of address space are insufficient, else an empty text."""
    if room_bytes >= needed_bytes:
        return ""
    return (
        f"the limit of address space leaves {room_bytes >> 20} MiB, {needed_bytes >> 20} MiB are "
        "required: raise RLIMIT_AS with ulimit -H -v"
    )


def _bytes(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
