"""How does the page of a run become a file of its run in MLflow?

Where the server keeps artifacts itself it is told to keep one more. Any other store (a folder that
all machines share, a bucket) is written to by MLflow's library, which the agent does not load.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from otel_mlperf.agent.delivery.destination import Delivered, Refused, TryLater
from otel_mlperf.agent.delivery.mlflow_client import Rejected, Unavailable

if TYPE_CHECKING:
    from otel_mlperf.agent.delivery.destination import Verdict
    from otel_mlperf.agent.delivery.mlflow_client import MlflowClient
    from otel_mlperf.agent.delivery.mlflow_run import MlflowRun
    from otel_mlperf.agent.delivery.mlflow_settings import MlflowSettings

_log = logging.getLogger("otel_mlperf.agent")
FILE: Final = "report.html"
ARTIFACT_STORE: Final = "artifact_store"
RUN_DELETED: Final = "run_deleted"
REFUSED: Final = "refused"
_PROXIED: Final = "mlflow-artifacts"


class MlflowReport:
    """One run's page; for a thread of its own, with a client and a run that no other one asks."""

    def __init__(self, client: MlflowClient, run: MlflowRun, settings: MlflowSettings) -> None:
        self._client, self._run = client, run
        self._server = urlsplit(settings.server.endpoint).netloc

    def accept(self, page: bytes) -> Verdict:
        """Keeps it beside the run, in place of an earlier one."""
        try:
            root = self._run.artifacts()
            if not root:
                return Refused(RUN_DELETED)
            folder = self._folder(root)
            if folder is None:
                _log.warning(
                    "mlflow: %s is not kept: the run's artifacts are at %s, where MLflow's server "
                    "does not write itself (mlflow server --serve-artifacts)", FILE, _shown(root),
                )  # fmt: skip
                return Refused(ARTIFACT_STORE)
            self._client.put(f"{folder}/{FILE}", page, "text/html")
        except Unavailable as error:
            return TryLater(error.reason, error.after_s)
        except Rejected as error:
            _log.warning("mlflow: %s was refused: %s", FILE, error.words)
            return Refused(REFUSED)
        return Delivered()

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _folder(self, root: str) -> str | None:
        """The folder in the server's own store that a URI means; None: it is in another one."""
        uri = urlsplit(root)
        if uri.scheme != _PROXIED or uri.netloc not in ("", self._server):
            return None
        return unquote(uri.path).strip("/")


def _shown(root: str) -> str:
    """Without a login or a key."""
    uri = urlsplit(root)
    return uri._replace(netloc=uri.netloc.rpartition("@")[2], query="", fragment="").geturl()
