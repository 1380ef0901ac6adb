"""What linking a trace must find, worked out slowly from the dictionaries of ``json.load``.

Shares no code with the package: lists that are searched, one event at a time.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "gpu_user_annotation"}
CALLS = {"cuda_runtime", "cuda_driver"}
_OUTER = {"user_annotation": 0, "python_function": 1, "cpu_op": 2}


class Reference:
    """Parents, launches, forward operators and steps of the events of one file."""

    def __init__(self, path):
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        document = json.loads(text, parse_float=Decimal)
        self.entries = document["traceEvents"]
        self.events = [entry for entry in self.entries if entry["ph"] == "X"]
        for row, event in enumerate(self.events):
            event["row"] = row
            event["cat"] = event["cat"].lower()
            event["begin"] = int(Decimal(event["ts"]) * 1000)
            event["end"] = event["begin"] + int(Decimal(event["dur"]) * 1000)
            event.setdefault("args", {})
        self.host = [e for e in self.events if e["cat"] not in {*DEVICE, "trace"}]
        self.device = [e for e in self.events if e["cat"] in DEVICE]
        self._steps = [e for e in self.host if e["name"].startswith("ProfilerStep#")]
        self.around = self._nested()
        self.launch = self._launches()

    def _nested(self):
        """Row to the row of the innermost event of the same thread that contains it whole."""
        threads = defaultdict(list)
        for event in self.host:
            threads[event["pid"], event["tid"]].append(event)
        found = {}
        for events in threads.values():
            open_ = []
            for event in sorted(events, key=_outer_first):
                open_ = [other for other in open_ if other["end"] > event["begin"]]
                whole = [other["row"] for other in open_ if other["end"] >= event["end"]]
                found[event["row"]] = whole[-1] if whole else -1
                open_.append(event)
        return found

    def _launches(self):
        calls = defaultdict(list)
        for event in self.host:
            if event["cat"] in CALLS:
                calls[event["args"].get("correlation")].append(event)
        found = {}
        for event in self.device:
            known = calls.get(event["args"].get("correlation"), [])
            before = [call for call in known if call["begin"] <= event["begin"]]
            chosen = max(before, key=lambda c: c["begin"]) if before else next(iter(known), None)
            found[event["row"]] = chosen["row"] if chosen else -1
        return found

    def parent(self, event):
        """The row of the event that one hangs under, without recorded sections."""
        row = event["row"]
        if event["cat"] not in DEVICE:
            return self.around.get(row, -1)
        if event["cat"] == "gpu_user_annotation" or self.launch[row] == -1:
            return self._by_external_id(event)
        above = self.around[self.launch[row]]
        if above == -1:
            asked = self._by_external_id(event)
            return self.launch[row] if asked == -1 else asked
        outermost = above
        while above != -1 and self.events[above]["cat"] in {*CALLS, "python_function"}:
            outermost, above = above, self.around[above]
        return outermost if above == -1 else above

    def _by_external_id(self, event):
        wanted = event["args"].get("External id")
        if wanted is None or wanted == event["args"].get("correlation"):
            return -1
        categories = {"gpu_user_annotation": {"user_annotation"}}.get(event["cat"], set(_OUTER))
        owners = [
            other["row"]
            for other in self.host
            if other["cat"] in categories and other["args"].get("External id") == wanted
        ]
        assert len(owners) <= 1, "this file needs a cleverer reference"
        return owners[0] if owners else -1

    def forward(self):
        """Row of each operator at the head of an arrow of autograd to the row at its tail."""
        operators = {
            (event["pid"], event["tid"], event["begin"]): event["row"]
            for event in self.host
            if event["cat"] == "cpu_op"
        }
        ends = defaultdict(dict)
        for entry in self.entries:
            if entry["ph"] in "sf" and entry.get("cat") == "fwdbwd":
                place = entry["pid"], entry["tid"], int(Decimal(entry["ts"]) * 1000)
                ends[entry["id"]][entry["ph"]] = operators[place]
        return {pair["f"]: pair["s"] for pair in ends.values()}

    def step(self, event):
        """The name of the annotated step that an event counts to; empty outside of any."""
        if event["cat"] == "trace":
            return ""
        row = event["row"]
        if event["cat"] in DEVICE:
            cause = self.parent(event) if self.launch[row] == -1 else self.launch[row]
            return "" if cause == -1 else self.step(self.events[cause])
        open_ = [s for s in self._steps if s["begin"] <= event["begin"] < s["end"]]
        return open_[0]["name"] if open_ else ""


def _outer_first(event):
    rank = _OUTER.get(event["cat"], 4)
    return (
        event["begin"],
        -event["end"],
        rank,
        event["args"].get("External id", -1),
        event["row"],
    )
