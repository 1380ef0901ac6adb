"""MLflow destination: points as metrics, and the page of the run as an artifact.

MLflow deduplicates points with equal key, value, step and time. A point without confirmed delivery
is therefore simply sent again. If MLflow refuses a batch, the batch is halved recursively until
only the invalid points are refused. The page is uploaded only if the MLflow server stores artifacts
itself. Other artifact stores (a shared folder, a bucket) require MLflow's library, which the agent
does not load.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from otel_mlperf.agent.delivery.destination import Delivered, Destination, Refused, TryLater
from otel_mlperf.agent.delivery.mlflow_run import MlflowRun, key_of, metric_of, tag_text
from otel_mlperf.agent.delivery.mlflow_server import (
    MlflowClient,
    Rejected,
    Unavailable,
    read_mlflow_settings,
)
from otel_mlperf.errors import StoreError
from otel_mlperf.settings.tracker_list import MLFLOW

if TYPE_CHECKING:
    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Signal, Verdict
    from otel_mlperf.agent.delivery.mlflow_server import MlflowSettings
    from otel_mlperf.agent.model.scalar_item import ScalarItem


_log = logging.getLogger("otel_mlperf.agent")
FILE: Final = "report.html"
ARTIFACT_STORE: Final = "artifact_store"
RUN_DELETED: Final = "run_deleted"
REFUSED: Final = "refused"
_PROXIED: Final = "mlflow-artifacts"


class MlflowReport:
    """Upload of one run's page, with its own client, because uploads run in a separate thread."""

    def __init__(self, client: MlflowClient, run: MlflowRun, settings: MlflowSettings) -> None:
        self._client, self._run = client, run
        self._server = urlsplit(settings.server.endpoint).netloc

    def accept(self, page: bytes) -> Verdict:
        """Upload the page to the run's artifacts, where it replaces an earlier page."""
        try:
            root = self._run.artifacts()
            if not root:
                return Refused(RUN_DELETED)
            folder = self._folder(root)
            if folder is None:
                _log.warning(
                    "mlflow: %s is not uploaded: the artifacts of the run are stored at %s, and "
                    "MLflow's server does not write there itself; start the server with "
                    "mlflow server --serve-artifacts", FILE, _shown(root),
                )  # fmt: skip
                return Refused(ARTIFACT_STORE)
            self._client.put(f"{folder}/{FILE}", page, "text/html")
        except Unavailable as error:
            return TryLater(error.reason, error.after_s)
        except Rejected as error:
            _log.warning("mlflow: the server rejected the file %s: %s", FILE, error.message)
            return Refused(REFUSED)
        return Delivered()

    def close(self) -> None:
        """Close the client's connection."""
        self._client.close()

    def _folder(self, root: str) -> str | None:
        """Return the path of URI ``root`` in the server's own store; None for other stores."""
        uri = urlsplit(root)
        if uri.scheme != _PROXIED or uri.netloc not in ("", self._server):
            return None
        return unquote(uri.path).strip("/")


def _shown(root: str) -> str:
    uri = urlsplit(root)
    return uri._replace(netloc=uri.netloc.rpartition("@")[2], query="", fragment="").geturl()


_MAX_METRICS: Final = 1000
"""Maximum number of metrics in one API call."""


class MlflowDestination(Destination):
    """Destination for one run at an MLflow tracking server."""

    name = MLFLOW

    def __init__(self, client: MlflowClient, run: MlflowRun, report: MlflowReport | None) -> None:
        self._client, self._run, self._report = client, run, report
        self.signals = ("scalars", "reports") if report else ("scalars",)

    def accept(self, batch: Batch) -> Verdict:
        """Log the batch's points, findings and outcomes; or upload the page in the batch."""
        if self._report and batch.signal == "reports":
            return self._report.accept(batch.report)
        try:
            run_id = self._run.ready()
            is_alone = self._run.facts().world_size == 1
            keys = [key_of(scalar, batch, is_alone=is_alone) for scalar in batch.scalars]
            lost = self._log_points(run_id, [*map(metric_of, keys, batch.scalars)])
            self._report_end(batch.scalars, keys)
        except Unavailable as error:
            return TryLater(error.reason, error.after_s)
        except (OSError, StoreError) as error:
            return TryLater(f"reading the run folder: {error}")
        except _RunDeleted:
            return Refused(RUN_DELETED)
        return Delivered(lost)

    def close(self, signal: Signal) -> None:
        """Close the client that delivers ``signal``."""
        if self._report and signal == "reports":
            self._report.close()
        else:
            self._client.close()

    def _log_points(self, run_id: str, points: list[dict[str, Any]]) -> dict[str, int]:
        refused: list[str] = []
        for at in range(0, len(points), _MAX_METRICS):
            refused += self._log(run_id, points[at : at + _MAX_METRICS])
        if not refused:
            return {}
        _log.warning("mlflow: %d points were rejected; first reason: %s", len(refused), refused[0])
        return {REFUSED: len(refused)}

    def _log(self, run_id: str, points: list[dict[str, Any]]) -> list[str]:
        """Log points, halving refused batches; return a message for each point that was refused."""
        try:
            self._client.post("runs/log-batch", run_id=run_id, metrics=points)
        except Rejected as error:
            if self._run.is_gone():
                raise _RunDeleted from error
            if len(points) > 1:
                middle = len(points) // 2
                return self._log(run_id, points[:middle]) + self._log(run_id, points[middle:])
            return [error.message]
        return []

    def _report_end(self, scalars: list[ScalarItem], keys: list[str]) -> None:
        found = {
            key: tag_text(scalar.text)
            for key, scalar in zip(keys, scalars, strict=True)
            if scalar.kind == "finding"
        }
        ended = [scalar for scalar in scalars if scalar.kind == "outcome"]
        try:
            self._run.tag(found)
            if ended:
                self._run.end(ended)
        except Rejected as error:  # the points were accepted
            _log.warning("mlflow: tags or the status of the run were rejected: %s", error.message)


class _RunDeleted(Exception):
    """The run was deleted at the server, which therefore refuses its points."""


def make(site: DestinationContext) -> MlflowDestination:
    """Create the destination for the server that the agent's environment variables name."""
    settings = read_mlflow_settings(site.options.environ)
    if settings.is_login_readable:
        endpoint = settings.server.endpoint
        _log.warning("mlflow: the login is sent unencrypted (http) to %s: use https", endpoint)
    client, report = MlflowClient(settings.server), None
    if site.options.tracker_report:
        report_client = MlflowClient(settings.server)
        report = MlflowReport(report_client, MlflowRun(report_client, site, settings), settings)
    return MlflowDestination(client, MlflowRun(client, site, settings), report)
