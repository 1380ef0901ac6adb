"""The MLflow run of a run: its creation, its parameters and tags, and its status.

All agents of a run report to one MLflow run. MLflow cannot create a run only if it is missing.
Therefore the agent with rank 0 creates the run, and the other agents wait for it. A tag that is set
after the creation identifies the run. If two were created, because the first answer was late, all
agents still report to the tagged one, and the other one is deleted at the end.

MLflow accepts letters, digits, ``_``, ``-``, ``.``, ``:``, spaces and slashes in a key, at most 250
of them. It refuses a key that would change when normalized as a path.
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
_ASK_AGAIN_S: Final = 30.0
_MOST_ENTRIES: Final = 100
"""Maximum number of parameters, or tags, in one call."""
_KEY_MOST: Final = 250
_PARAM_MOST: Final = 6000
_TAG_MOST: Final = 5000
_FOREIGN: Final = re.compile(r"[^/\w.\- :]")
_NEVER_A_PART: Final = ("", ".", "..")


class MlflowRun:
    """MLflow run that corresponds to one run of ours; every call raises what the client's do."""

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
        """Return the current content of ``run.json``."""
        return read_run_file(self._folder)

    def ready(self) -> str:
        """Return the id of the run, which then exists, is open, and is described."""
        if not self._id:
            try:
                self._id = self._settings.run_id or self._find_or_create()
            # The user has to change a name, or restore what was deleted. Points wait for that.
            except Rejected as error:
                raise Unavailable(error.message, _ASK_AGAIN_S) from error
        if self._creates_run:
            try:
                self._describe()
                self._reopen()
            except Rejected as error:  # points are sent all the same
                _log.warning(
                    "mlflow: parameters or tags of the run were rejected: %s", error.message
                )
        return self._id

    def artifacts(self) -> str:
        """Return the URI of the run's artifacts; empty: the run is deleted. This creates no run."""
        try:
            self._id = self._id or self._settings.run_id or self._found(self._experiment(), "ALL")
        except Rejected as error:
            raise Unavailable(error.message, _ASK_AGAIN_S) from error
        if not self._id:
            raise Unavailable(f"the run does not exist yet at {self._settings.server.endpoint}")
        return "" if self.is_gone() else str(self._get()["info"]["artifact_uri"])

    def is_gone(self) -> bool:
        """Return whether the run was deleted."""
        try:
            return bool(self._get()["info"].get("lifecycle_stage") == "deleted")
        except Rejected as error:
            return error.code == "RESOURCE_DOES_NOT_EXIST"

    def tag(self, tags: dict[str, str]) -> None:
        """Set tags."""
        self._log_entries("tags", tags)

    @property
    def _creates_run(self) -> bool:
        return 0 in self._ranks()

    # -- lookup and creation of the run ------------------------------------------------------------

    def _find_or_create(self) -> str:
        experiment, run_id = self._experiment(), self.facts().id
        if meant := self._found(experiment):
            return meant
        if not self._creates_run:
            raise Unavailable(
                f"the run does not exist yet at {self._settings.server.endpoint}: the agent of "
                "rank 0 creates the run"
            )
        # Reuse a run that an agent created before it was killed, or before the answer came.
        made = self._search(experiment, MADE_TAG, run_id)
        chosen = str((made[0] if made else self._make(experiment))["info"]["run_id"])
        self._client.post("runs/set-tag", run_id=chosen, key=RUN_TAG, value=run_id)
        return chosen

    def _found(self, experiment: str, view: str = "ACTIVE_ONLY") -> str:
        """Return the id of the tagged run; empty: it has not been created yet.

        With ``view`` ``ALL`` it may be a deleted run.
        """
        for meant in self._search(experiment, RUN_TAG, self.facts().id, view)[:1]:
            self._has_ended = meant["info"]["status"] != _STATUS["running"]
            return str(meant["info"]["run_id"])
        return ""

    def _experiment(self) -> str:
        name, known = self._settings.experiment, self._settings.experiment_id
        if not name:
            self._client.get("experiments/get", experiment_id=known)  # refused if it does not exist
            return known
        found = self._experiment_of(name)
        if known and known != found:  # MLflow itself refuses to start a run then
            raise Unavailable(
                f"MLFLOW_EXPERIMENT_ID is {known}, but the experiment {name!r} in "
                f"MLFLOW_EXPERIMENT_NAME has the id {found}; unset one of the two variables",
                _ASK_AGAIN_S,
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
        raise Unavailable(f"experiment {name!r} can be neither found nor created", _ASK_AGAIN_S)

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
        """Log parameters and tags whenever the file that contains them has changed."""
        about = (self._folder / RUN_FILE).stat()
        if self._described == (about.st_mtime_ns, about.st_size):
            return
        facts, known = self.facts(), self._get().get("data", {}).get("params", [])
        there = {param["key"]: param.get("value", "") for param in known}
        params = params_of(facts.params)
        for key in params.keys() & there.keys():
            if params[key] != there[key]:
                _log.warning(
                    "mlflow: parameter %s keeps its earlier value: MLflow does not change "
                    "parameters",
                    key,
                )
        new = {key: text for key, text in params.items() if key not in there}
        try:
            self._log_entries("params", new)
            self._log_entries("tags", tags_of(facts.tags))
        finally:
            self._described = about.st_mtime_ns, about.st_size

    def _log_entries(self, kind: str, entries: dict[str, str]) -> None:
        listed = [{"key": key, "value": value} for key, value in entries.items()]
        for at in range(0, len(listed), _MOST_ENTRIES):
            part = {kind: listed[at : at + _MOST_ENTRIES]}
            self._client.post("runs/log-batch", run_id=self._id, **part)

    # -- end of the run ----------------------------------------------------------------------------

    def end(self, ended: Sequence[ScalarItem]) -> None:
        """Report that processes of this host have ended, and the end of the run once all have.

        Each host has a tag of its own. Any host that changes the status reads all tags again
        afterwards. The last host therefore sets the worst status of all.
        """
        if self._settings.run_id:  # its creator ends it
            return
        run = self._get()
        here = [(item.restart, OUTCOMES.index(item.text)) for item in ended]
        here += _outcomes(run, self._outcome)
        restart, worst = max(here)
        self.tag({self._outcome: f"{OUTCOMES[worst]} (restart {restart})"})
        # A host without rank 0 changes the status only if something failed there.
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
            self._drop_others(str(run["info"]["experiment_id"]))

    def _status(self) -> str:
        _, worst = max(_outcomes(self._get(), OUTCOME_TAG), default=(0, 1))
        return _STATUS[OUTCOMES[worst]]

    def _reopen(self) -> None:
        if not self._has_ended or not any(self._ranks().values()):
            return
        self._client.post("runs/update", run_id=self._id, status=_STATUS["running"])
        self._has_ended = False

    def _drop_others(self, experiment: str) -> None:
        for run in self._search(experiment, MADE_TAG, self.facts().id):
            if run["info"]["run_id"] != self._id:
                self._client.post("runs/delete", run_id=run["info"]["run_id"])

    def _get(self) -> dict[str, Any]:
        return dict(self._client.get("runs/get", run_id=self._id)["run"])


def _outcomes(run: dict[str, Any], tag: str) -> Iterable[tuple[int, int]]:
    """Yield restart and outcome index of the tags whose key starts with ``tag``."""
    for entry in run.get("data", {}).get("tags", []):
        word, _, restart = entry.get("value", "").rstrip(")").partition(" (restart ")
        if entry["key"].startswith(tag) and word in OUTCOMES and restart.isdecimal():
            yield int(restart), OUTCOMES.index(word)


def metric_of(key: str, scalar: ScalarItem) -> dict[str, Any]:
    """Return a metric of ``runs/log-batch``."""
    return {
        "key": key,
        "value": json_safe_number(scalar.value),
        "timestamp": scalar.time_ns // 10**6,
        "step": scalar.number or 0,
    }


def key_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Return the key of a point's curve in MLflow."""
    return safe_key(curve_of(scalar, batch, is_alone=is_alone))


def safe_key(key: str) -> str:
    """Return a key that MLflow accepts: unchanged where possible; distinct keys stay distinct."""
    parts = [part for part in _FOREIGN.sub("_", key).split("/") if part not in _NEVER_A_PART]
    safe = "/".join(parts) or "_"
    if len(safe) <= _KEY_MOST and not _FOREIGN.search(key):
        return safe
    mark = blake2b(key.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return f"{safe[: _KEY_MOST - len(mark) - 1]}-{mark}"


def params_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters by key as text; nested ones get the key ``outer.inner``."""
    return {safe_key(key): text[:_PARAM_MOST] for key, text in _flat(params, "")}


def tags_of(tags: list[str]) -> dict[str, str]:
    """Return tags by key: ``name=value``, or a name alone."""
    parts = [tag.partition("=") for tag in tags]
    return {safe_key(key): tag_text(value if sign else "true") for key, sign, value in parts}


def tag_text(text: str) -> str:
    """Truncate a text to the length limit of a tag."""
    return text[:_TAG_MOST]


def _flat(params: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, dict | list):
            yield f"{before}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{before}{name}", str(value)
