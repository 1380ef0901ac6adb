"""Reader of a run in an MLflow server, by its own API."""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import urllib3
from tracked_points import in_tables

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_STEP = ("readings/", "run/", "result/")


def ask(url: str, call: str, said: dict | None = None, **asked: str) -> dict[str, Any]:
    """The answer to a call: with ``said`` as its body, or to a question."""
    place = f"{url}/api/2.0/mlflow/{call}"
    if said is None:
        reply = urllib3.request("GET", f"{place}?{urlencode(asked)}", timeout=120.0)
    else:
        reply = urllib3.request("POST", place, json=said, timeout=120.0)
    assert reply.status == 200, reply.data
    return json.loads(reply.data)


def runs(url: str, experiment: str) -> list[dict[str, Any]]:
    """All runs of an experiment that nobody has deleted."""
    found = ask(url, "experiments/get-by-name", experiment_name=experiment)
    known = {"experiment_ids": [found["experiment"]["experiment_id"]]}
    return ask(url, "runs/search", known).get("runs", [])


def entries(run: dict[str, Any], kind: str) -> dict[str, str]:
    """Parameters or tags of a run, without those that MLflow itself sets."""
    found = {entry["key"]: entry["value"] for entry in run["data"].get(kind, [])}
    return {key: value for key, value in found.items() if not key.startswith("mlflow.")}


def history(url: str, run: dict[str, Any], key: str) -> list[tuple[int, Any]]:
    """Step and value of each point of a curve, as they were logged."""
    told = ask(url, "metrics/get-history", run_id=run["info"]["run_id"], metric_key=key)
    return [(point["step"], point["value"]) for point in told.get("metrics", [])]


def artifact(url: str, run: dict[str, Any], name: str) -> bytes | None:
    """A file of a run from the server's own store; None: there is none."""
    place = urlsplit(run["info"]["artifact_uri"]).path
    found = f"{url}/api/2.0/mlflow-artifacts/artifacts{place}/{name}"
    reply = urllib3.request("GET", found, timeout=120.0)
    return reply.data if reply.status == 200 else None


def in_mlflow(url: str, run: dict[str, Any]) -> Counter[tuple]:
    """Key, value, time in ms and step of every point; of what is of no step without it."""
    found: Counter[tuple] = Counter()
    for key in {metric["key"] for metric in run["data"].get("metrics", [])}:
        told = ask(url, "metrics/get-history", run_id=run["info"]["run_id"], metric_key=key)
        for point in told["metrics"]:
            step = None if key.startswith(WITHOUT_STEP) else point["step"]
            found[key, float(point["value"]), point["timestamp"], step] += 1
    return found


def expected(run_folder: Path, host: str = "") -> Counter[tuple]:
    """The same by the run's own tables; with a ``host`` each key ends with whose it is."""
    found: Counter[tuple] = Counter()
    for (rank, name, value, time_ns, number), count in in_tables(run_folder).items():
        parts = [part for part in name.split("/") if part]
        if host:
            parts.append(host if rank is None else f"rank{rank}")
        found[_shown("/".join(parts)), float(value), time_ns // 10**6, number] += count
    return found


def _shown(key: str) -> str:
    """The key that MLflow has: of one that it does not take, with other characters and a hash.

    A busy machine records readings of ``<string>`` and ``<module>``.
    """
    safe = re.sub(r"[^/\w.\- :]", "_", key)
    return key if safe == key else f"{safe}-{blake2b(key.encode(), digest_size=3).hexdigest()}"
