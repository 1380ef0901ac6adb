"""Was it Ctrl-C that ended a program whose framework catches it and leaves with a code of its own?

Python says of an exit neither that it comes nor why.
"""

from __future__ import annotations

from typing import Any

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment
from otel_mlperf.recorder.api.start import current


class Interrupted(LoopMoment):
    """A framework has caught an exception: no section, the run only hears of it."""

    def of(self, subject: Any = None) -> Any:
        """The gate for a call with this exception."""
        run = current()
        # Any other is raised again by the framework, and may be caught by the program.
        if run is not None and isinstance(subject, KeyboardInterrupt):
            run._note_failure(subject)
        return UNSEEN
