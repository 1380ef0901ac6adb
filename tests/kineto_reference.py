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
        """Row to the row of the innermost event of the same thread that contains it whole.

        A frame of Python is over when the one that it began in is; one that outlives another event
        has nothing of what is in that.
        """
        threads = defaultdict(list)
        for event in self.host:
            threads[event["pid"], event["tid"]].append(event)
        found = {}
        for events in threads.values():
            open_ = []
            for event in sorted(events, key=_outer_first):
                open_ = [other for other in open_ if other["until"] > event["begin"]]
                frames = [other["until"] for other in open_ if _is_frame(other)]
                ends = [event["end"], *(frames[-1:] if _is_frame(event) else [])]
                event["until"] = min(ends)
                whole = [other for other in open_ if other["until"] >= event["until"]]
                others = [other for other in whole if not _is_frame(other)]
                if others and whole[-1]["until"] > others[-1]["until"]:
                    whole = others
                found[event["row"]] = whole[-1]["row"] if whole else -1
                open_.append(event)
        return found | self._instants(found)

    def _instants(self, found):
        """Row of each operator without duration to its row above, as External ids tell."""
        operators = [e for e in self.host if e["cat"] == "cpu_op"]
        rows, ending = {e["row"] for e in operators}, defaultdict(list)
        pairs = set()
        for event in operators:
            if event["end"] > event["begin"]:
                ending[event["pid"], event["tid"], event["end"]].append(event)
            above = self.events[found[event["row"]]] if found[event["row"]] in rows else None
            if above and (event["end"] > event["begin"] or event["begin"] > above["begin"]):
                pairs.add((above["name"], event["name"]))
        instants = [e for e in operators if e["end"] <= e["begin"] and _number(e) > 0]
        return {
            event["row"]: self._above_instant(
                event, ending[event["pid"], event["tid"], event["begin"]], pairs, found
            )
            for event in instants
        }

    def _above_instant(self, event, ending, pairs, found):
        before = [other for other in ending if 0 < _number(other) < _number(event)]
        inner = max(before, key=_number)["row"] if before else -1
        while inner != -1 and self.events[inner]["end"] == event["begin"]:
            if (self.events[inner]["name"], event["name"]) in pairs:
                return inner
            inner = found[inner]
        above = found[event["row"]]
        while above != -1 and self.events[above]["begin"] == event["begin"]:
            if _number(self.events[above]) < _number(event):
                break
            above = found[above]
        return above

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


def _number(event):
    return event["args"].get("External id", -1)


def _is_frame(event):
    return event["cat"] == "python_function"


def _outer_first(event):
    rank = _OUTER.get(event["cat"], 4)
    return (
        event["begin"],
        -event["end"],
        rank,
        event["args"].get("External id", -1),
        event["row"],
    )
