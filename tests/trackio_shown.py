"""Reader of a run in trackio, after trackio has imported its inbox."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from runs import LIMIT_S, environment
from servers import build

if TYPE_CHECKING:
    from pathlib import Path

_TAKE = """
import json, sys
from trackio.server import get_project_files, import_inbox_once
from trackio.sqlite_storage import SQLiteStorage as storage

import_inbox_once()
project, = storage.get_projects()
(run,) = storage.get_run_records(project)
whose = {"project": project, "run": run["name"], "run_id": run["id"]}
print(json.dumps({
    "project": project, "name": run["name"], "id": run["id"],
    "logs": storage.get_logs(**whose), "system": storage.get_system_logs(**whose),
    "alerts": storage.get_alerts(project), "config": storage.get_run_config(**whose),
    "files": {file["name"]: file["path"] for file in get_project_files(project)},
}))
"""


class Shown(NamedTuple):
    """The one run of the one project."""

    project: str
    name: str
    id: str
    logs: list[dict[str, Any]]
    system: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    config: dict[str, Any]
    files: dict[str, str]
    """Of the project, by name, and where they lie."""

    @property
    def points(self) -> Counter[tuple]:
        """Curve, value, time and step of each point; of what is of no step without it."""
        found: Counter[tuple] = Counter()
        for row in self.logs + self.system:
            time_s = datetime.fromisoformat(row["timestamp"]).timestamp()
            for name in row.keys() - {"step", "timestamp"}:
                number = None if name.startswith(("run/", "result/")) else row.get("step")
                found[name, row[name], time_s, number] += 1
        return found


def shown(folder: Path, home: Path) -> Shown:
    """Has trackio take what lies in its ``folder``, as its dashboard does every few seconds."""
    done = subprocess.run(
        [build.python_of(build.TRACKIO), "-c", _TAKE], capture_output=True, text=True, check=False,
        env=environment(home, TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1", HOME=str(home)),
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Shown(**json.loads(done.stdout))


def expected(points: Counter[tuple]) -> Counter[tuple]:
    """Points by the run's tables, with times as trackio writes them: to the microsecond."""
    return Counter(
        {
            (name, value, round(time_s, 6), number): n
            for (name, value, time_s, number), n in points.items()
        }
    )
