"""What is the program called that starts a run, and what does its environment say of it?"""

from __future__ import annotations

import os
import sys

from otel_mlperf.recorder.core.faults import log


def script_name() -> str:
    """The name of the script or module that runs; ``run`` where there is none."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__").rpartition(".")[2]
    if is_notebook():
        return "notebook"
    stem = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return stem if stem not in ("", "-c", "-m") else "run"


def is_notebook() -> bool:
    """Whether a notebook runs the program."""
    shell = sys.modules.get("IPython")
    get = getattr(shell, "get_ipython", None)
    return get is not None and type(get()).__name__ == "ZMQInteractiveShell"


def is_interactive() -> bool:
    """Whether somebody types the program: an exception there ends a statement, not a run."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    typed = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return typed or (get is not None and get() is not None)


def parse_resource(text: str) -> dict[str, str | int | float | bool]:
    """Resource attributes out of OTEL_RESOURCE_ATTRIBUTES; what is none of them is said."""
    from urllib.parse import unquote

    found: dict[str, str | int | float | bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            log.warning("OTEL_RESOURCE_ATTRIBUTES: %r is not 'name=value'; it is left out", pair)
            continue
        found[unquote(key.strip())] = unquote(value.strip())
    return found
