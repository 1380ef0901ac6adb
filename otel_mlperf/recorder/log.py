"""What does ``log`` do with the values of a step?"""

from __future__ import annotations

from typing import Any

from otel_mlperf.recorder.faults import internal_error
from otel_mlperf.recorder.span import active, is_compiling


def log(**values: Any) -> None:
    """Records values of the current step: ``log(loss=loss, lr=lr)``.

    ``loss``, ``lr`` and ``grad_norm`` become ``ml.training.*`` metrics, other names
    ``ml.user.<name>``. A tensor on a GPU is not waited for: it is published when its copy arrives.
    """
    try:
        recorder = None if is_compiling() else active()
        if recorder is not None:
            recorder.values.log(values)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
