"""What does ``log`` do with the values of a step?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core.faults import internal_error, say_once


def log(*more: Mapping[str, Any], **values: Any) -> None:
    """Records values of the current step: ``log(loss=loss, lr=lr)``, or a mapping of them.

    ``loss``, ``lr`` and ``grad_norm`` become ``ml.training.*`` metrics, other names
    ``ml.user.<name>``. A tensor on a GPU is not waited for: it is published when its copy arrives.
    """
    try:
        recorder = None if is_compiling() else active()
        if recorder is not None:
            recorder.values.log(_joined(values, more))
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _joined(values: dict[str, Any], more: tuple[Any, ...]) -> dict[str, Any]:
    for one in more:
        if isinstance(one, Mapping):
            values = {**one, **values}
        else:
            say_once(f"log(): values are given by name, loss=0.1; {one!r:.40} is none")
    return values
