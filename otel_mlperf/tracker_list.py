"""Which trackers of experiments can be destinations, and is what each needs installed?

Asked in the training process too, which loads none of them: the agent does.
"""

from __future__ import annotations

from typing import Any, Final

from otel_mlperf.errors import ConfigError

TRACKERS: Final = ("tensorboard",)
"""Each is called as its module is, and as the extra of this package that installs it."""


def trackers_text(given: Any) -> str:
    """Names of trackers, each once and in one order, separated by commas.

    Raises:
        ConfigError: there is no such tracker.
    """
    words = given.split(",") if isinstance(given, str) else list(given)
    wanted = {word.strip() for word in words} - {""}
    if unknown := wanted.difference(TRACKERS):
        known = ", ".join(TRACKERS)
        raise ConfigError(f"found {min(unknown)!r}, expected some of {known}")
    return ",".join(name for name in TRACKERS if name in wanted)


def not_installed(names: str) -> list[str]:
    """What to tell of each tracker among ``names``, as above, that is not installed."""
    from importlib.util import find_spec

    return [
        f"{name} is not installed: pip install 'otel-mlperf[{name}]'"
        for name in filter(None, names.split(","))
        if find_spec(name) is None
    ]
