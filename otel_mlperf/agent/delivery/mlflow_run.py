"""The MLflow run of a training run: creation, parameters, tags and status.

All agents of a run report to one MLflow run. MLflow has no atomic "create if missing". The agent
with rank 0 therefore creates the MLflow run, and the agents of other hosts wait for it. A tag that
is set after creation identifies the run. If two runs were created because the first response was
late, all agents report to the tagged run, and the duplicate is deleted at the end.

MLflow accepts letters, digits, ``_``, ``-``, ``.``, ``:``, spaces and slashes in a key, at most 250
characters. It refuses a key that would change when normalized as a path.
"""

from __future__ import annotations

import logging
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.agent.delivery.mlflow_server import Rejected, Unavailable
from otel_mlperf.agent.delivery.tracker_curves import curve_of, json_safe_number
from otel_mlperf.agent.derivation.scalars import OUTCOMES
from otel_mlperf.run_files.run_file import RUN_FILE, read_run_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext
    from otel_mlperf.agent.delivery.mlflow_server import MlflowClient, MlflowSettings
    from otel_mlperf.agent.model.scalar_item import ScalarItem
    from otel_mlperf.run_files.run_file import RunFile

_log = logging.getLogger("otel_mlperf.agent")
RUN_TAG: Final = "otel_mlperf.run_id"
MADE_TAG: Final = "otel_mlperf.made_for"
OUTCOME_TAG: Final = "otel_mlperf.outcome."
_STATUS: Final = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED",
                  "killed": "KILLED", "interrupted": "KILLED"}  # fmt: skip
_RETRY_S: Final = 30.0
_MAX_ENTRIES: Final = 100
"""Maximum number of parameters, or of tags, in one call."""
_MAX_KEY_CHARS: Final = 250
_MAX_PARAM_CHARS: Final = 6000
_MAX_TAG_CHARS: Final = 5000
_FOREIGN: Final = re.compile(r"[^/\w.\- :]")
_NEVER_A_PART: Final = ("", ".", "..")


class MlflowRun:
    """MLflow run of one training run. Failed API calls raise ``Unavailable`` or ``Rejected``."""

    def __init__(
        self, client: MlflowClient, site: DestinationContext, settings: MlflowSettings
    ) -> None:
        self._client, self._settings = client, settings
        self._folder, self._ranks = site.run_folder, site.ranks
        self._outcome = safe_key(OUTCOME_TAG + site.host)
        self._id = ""
        self._described: tuple[int, int] | None = None
        self._has_ended = False

    def facts(self) -> RunFile:
        """Return the current content of the run folder's ``run.json``."""
        return read_run_file(self._folder)

    def ready(self) -> str:
        """Return the MLflow run's id; create or reopen the run and log its parameters if needed."""
        if not self._id:
            try:
                self._id = self._settings.run_id or self._find_or_create()
            # The user must change a name or restore a deleted experiment; points wait until then.
            except Rejected as error:
                raise Unavailable(error.message, _RETRY_S) from error
        if self._creates_run:
            try:
                self._describe()
                self._reopen()
            except Rejected as error:  # points can be sent in any case
                _log.warning(
                    "mlflow: parameters or tags of the run were rejected: %s", error.message
                )
        return self._id

    def artifacts(self) -> str:
        """Return the URI of the run's artifacts; "" if the run was deleted. Never creates a run."""
        try:
            self._id = self._id or self._settings.run_id or self._found(self._experiment(), "ALL")
        except Rejected as error:
            raise Unavailable(error.message, _RETRY_S) from error
        if not self._id:
            raise Unavailable(f"the run does not exist yet at {self._settings.server.endpoint}")
        return "" if self.is_gone() else str(self._get()["info"]["artifact_uri"])

    def is_gone(self) -> bool:
        """Return whether the run was deleted at the server."""
        try:
            return bool(self._get()["info"].get("lifecycle_stage") == "deleted")
        except Rejected as error:
            return error.code == "RESOURCE_DOES_NOT_EXIST"

    def tag(self, tags: dict[str, str]) -> None:
        """Set ``tags`` of the MLflow run."""
        self._log_entries("tags", tags)

    @property
    def _creates_run(self) -> bool:
        return 0 in self._ranks()

    # -- lookup and creation of the run ------------------------------------------------------------

    def _find_or_create(self) -> str:
        experiment, run_id = self._experiment(), self.facts().id
        if found := self._found(experiment):
            return found
        if not self._creates_run:
            raise Unavailable(
                f"the run does not exist yet at {self._settings.server.endpoint}: the agent of "
                "rank 0 creates the run"
            )
        # Reuse a run that an agent created before it was killed, or whose response did not arrive.
        made = self._search(experiment, MADE_TAG, run_id)
        chosen = str((made[0] if made else self._make(experiment))["info"]["run_id"])
        self._client.post("runs/set-tag", run_id=chosen, key=RUN_TAG, value=run_id)
        return chosen

    def _found(self, experiment: str, view: str = "ACTIVE_ONLY") -> str:
        """Return the id of the tagged run; "" if there is no such run.

        With ``view="ALL"``, deleted runs are searched too.
        """
        for found in self._search(experiment, RUN_TAG, self.facts().id, view)[:1]:
            self._has_ended = found["info"]["status"] != _STATUS["running"]
            return str(found["info"]["run_id"])
        return ""

    def _experiment(self) -> str:
        name, known = self._settings.experiment, self._settings.experiment_id
        if not name:
            self._client.get("experiments/get", experiment_id=known)  # refused if it does not exist
            return known
        found = self._experiment_of(name)
        if known and known != found:  # MLflow's own client refuses this as well
            raise Unavailable(
                f"MLFLOW_EXPERIMENT_ID is {known}, but the experiment {name!r} in "
                f"MLFLOW_EXPERIMENT_NAME has the id {found}; unset one of the two variables",
                _RETRY_S,
            )
        return found

    def _experiment_of(self, name: str) -> str:
        for _ in range(2):
            try:
                found = self._client.get("experiments/get-by-name", experiment_name=name)
                return str(found["experiment"]["experiment_id"])
            except Rejected as error:
                if error.code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            try:
                return str(self._client.post("experiments/create", name=name)["experiment_id"])
            except Rejected as error:  # another agent was first
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
        raise Unavailable(f"experiment {name!r} can be neither found nor created", _RETRY_S)

    def _search(
        self, experiment: str, tag: str, run_id: str, view: str = "ACTIVE_ONLY"
    ) -> list[dict[str, Any]]:
        quote = '"' if "'" in run_id else "'"
        found = self._client.post(
            "runs/search",
            experiment_ids=[experiment],
            filter=f"tags.`{tag}` = {quote}{run_id}{quote}",
            order_by=["attributes.start_time ASC"],
            max_results=10,
            run_view_type=view,
        )
        return list(found.get("runs", []))

    def _make(self, experiment: str) -> dict[str, Any]:
        facts = self.facts()
        made = self._client.post(
            "runs/create",
            experiment_id=experiment,
            run_name=facts.name,
            start_time=facts.started_ns // 10**6,
            tags=[{"key": MADE_TAG, "value": facts.id}],
        )
        return dict(made["run"])

    # -- parameters and tags -----------------------------------------------------------------------

    def _describe(self) -> None:
        """Log parameters and tags if ``run.json`` has changed since the last call."""
        about = (self._folder / RUN_FILE).stat()
        if self._described == (about.st_mtime_ns, about.st_size):
            return
        facts, known = self.facts(), self._get().get("data", {}).get("params", [])
        current = {param["key"]: param.get("value", "") for param in known}
        params = params_of(facts.params)
        for key in params.keys() & current.keys():
            if params[key] != current[key]:
                _log.warning(
                    "mlflow: parameter %s keeps its earlier value: MLflow does not change "
                    "parameters",
                    key,
                )
        new = {key: text for key, text in params.items() if key not in current}
        try:
            self._log_entries("params", new)
            self._log_entries("tags", tags_of(facts.tags))
        finally:
            self._described = about.st_mtime_ns, about.st_size

    def _log_entries(self, kind: str, entries: dict[str, str]) -> None:
        listed = [{"key": key, "value": value} for key, value in entries.items()]
        for at in range(0, len(listed), _MAX_ENTRIES):
            part = {kind: listed[at : at + _MAX_ENTRIES]}
            self._client.post("runs/log-batch", run_id=self._id, **part)

    # -- end of the run ----------------------------------------------------------------------------

    def end(self, ended: Sequence[ScalarItem]) -> None:
        """Report ended processes of this host; after the last process, report the run's status.

        Each host stores the worst outcome of its processes in a separate tag. A host that changes
        the run's status reads all tags again afterwards, so that the last host sets the worst
        status of all hosts.
        """
        if self._settings.run_id:  # the user who created the run ends it
            return
        run = self._get()
        outcomes = [(item.restart, OUTCOMES.index(item.text)) for item in ended]
        outcomes += _outcomes(run, self._outcome)
        restart, worst = max(outcomes)
        self.tag({self._outcome: f"{OUTCOMES[worst]} (restart {restart})"})
        # A host without rank 0 changes the status only if one of its processes failed.
        is_good = OUTCOMES[worst] == "finished" and not self._creates_run
        if is_good or any(self._ranks().values()):
            return
        end_ms = max(item.time_ns for item in ended) // 10**6
        reported = ""
        while (status := self._status()) != reported:
            self._client.post("runs/update", run_id=self._id, status=status, end_time=end_ms)
            reported = status
        self._has_ended = True
        if self._creates_run:
            self._delete_duplicates(str(run["info"]["experiment_id"]))

    def _status(self) -> str:
        _, worst = max(_outcomes(self._get(), OUTCOME_TAG), default=(0, 1))
        return _STATUS[OUTCOMES[worst]]

    def _reopen(self) -> None:
        if not self._has_ended or not any(self._ranks().values()):
            return
        self._client.post("runs/update", run_id=self._id, status=_STATUS["running"])
        self._has_ended = False

    def _delete_duplicates(self, experiment: str) -> None:
        for run in self._search(experiment, MADE_TAG, self.facts().id):
            if run["info"]["run_id"] != self._id:
                self._client.post("runs/delete", run_id=run["info"]["run_id"])

    def _get(self) -> dict[str, Any]:
        return dict(self._client.get("runs/get", run_id=self._id)["run"])


def _outcomes(run: dict[str, Any], tag: str) -> Iterable[tuple[int, int]]:
    for entry in run.get("data", {}).get("tags", []):
        outcome, _, restart = entry.get("value", "").rstrip(")").partition(" (restart ")
        if entry["key"].startswith(tag) and outcome in OUTCOMES and restart.isdecimal():
            yield int(restart), OUTCOMES.index(outcome)


def metric_of(key: str, scalar: ScalarItem) -> dict[str, Any]:
    """Return a point as a metric of the API call ``runs/log-batch``."""
    return {
        "key": key,
        "value": json_safe_number(scalar.value),
        "timestamp": scalar.time_ns // 10**6,
        "step": scalar.number or 0,
    }


def key_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Return the key of a point's curve in MLflow. ``is_alone``: the run has a single rank."""
    return safe_key(curve_of(scalar, batch, is_alone=is_alone))


def safe_key(key: str) -> str:
    """Return a key that MLflow accepts: ``key`` itself, or a valid key with a hash of ``key``."""
    parts = [part for part in _FOREIGN.sub("_", key).split("/") if part not in _NEVER_A_PART]
    safe = "/".join(parts) or "_"
    if len(safe) <= _MAX_KEY_CHARS and not _FOREIGN.search(key):
        return safe
    mark = blake2b(key.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return f"{safe[: _MAX_KEY_CHARS - len(mark) - 1]}-{mark}"


def params_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as text by key. Nested parameters have the key ``outer.inner``."""
    return {safe_key(key): text[:_MAX_PARAM_CHARS] for key, text in _flat(params, "")}


def tags_of(tags: list[str]) -> dict[str, str]:
    """Return MLflow tags from texts ``name=value``. A name without a value gets "true"."""
    parts = [tag.partition("=") for tag in tags]
    return {safe_key(key): tag_text(value if sign else "true") for key, sign, value in parts}


def tag_text(text: str) -> str:
    """Return ``text``, truncated to the maximum length of a tag."""
    return text[:_MAX_TAG_CHARS]


def _flat(params: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, dict | list):
            yield f"{before}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{before}{name}", str(value)
