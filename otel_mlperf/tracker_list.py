"""Which trackers of experiments can be destinations, and is what each needs installed?

Asked in the training process too, which loads none of them: the agent does.
"""

from __future__ import annotations

from typing import Final

TRACKERS: Final = ("tensorboard",)
"""Each is called as its module is, and as the extra of this package that installs it."""


def not_installed(names: str) -> list[str]:
    """What to tell of each tracker among ``names``, separated by commas, that is not installed."""
    from importlib.util import find_spec

    return [
        f"{name} is not installed: pip install 'otel-mlperf[{name}]'"
        for name in filter(None, names.split(","))
        if find_spec(name) is None
    ]
