"""Ways in which records of a profiler window get lost, done to the entries of a trace.

Each takes the entries and returns those that are left, with the kind of loss that has to be named,
how many records it is and of how many: counted here from the entries alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver"}
KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}


class Named(NamedTuple):
    """What has to be said."""

    kinds: dict[str, tuple[int, int]]
    """Kind to how many are missing, and of how many."""
    stream: int | None = None
    """The only stream that lacks some."""


def is_device(entry):
    """Whether an entry is work of a device."""
    return entry.get("ph") == "X" and entry.get("cat") in DEVICE


def is_call(entry):
    """Whether an entry is a call of runtime or driver."""
    return entry.get("ph") == "X" and entry.get("cat") in CALLS


def _args(entry):
    return entry.get("args") or {}


def _place(entry):
    return entry.get("pid"), entry.get("tid"), entry.get("ts")


def _span(entries):
    """From the first launch that is answered to the last, by the time of the call."""
    answered = {_args(entry)["correlation"] for entry in entries if is_device(entry)}
    times = [e["ts"] for e in entries if is_call(e) and _args(e)["correlation"] in answered]
    return min(times), max(times)


def without(entries, is_lost):
    """The entries without these, and without the arrows that end at them."""
    places = {_place(entry) for entry in entries if is_lost(entry)}
    return [
        entry
        for entry in entries
        if not is_lost(entry) and not (entry.get("ph") == "f" and _place(entry) in places)
    ]


def lose_work(is_lost):
    """Loses device records, those that were launched in the window counting."""

    def lose(entries):
        calls = {_args(e)["correlation"]: e["ts"] for e in entries if is_call(e)}
        first, last = _span(entries)
        kinds, of, streams = {}, {}, set()
        lost = set()
        work = sorted((e for e in entries if is_device(e)), key=lambda e: e["ts"])
        for at, entry in enumerate(work):
            number = _args(entry)["correlation"]
            if number not in calls:
                continue
            kind = KINDS[entry["cat"]]
            of[kind] = of.get(kind, 0) + 1
            when = (calls[number] - first) / (last - first)
            if is_lost(entry, when, at):
                lost.add(id(entry))
                kinds[kind] = kinds.get(kind, 0) + 1
                streams.add(_args(entry)["stream"])
        named = {kind: (count, of[kind]) for kind, count in kinds.items()}
        only = streams.pop() if len(streams) == 1 else None
        return without(entries, lambda entry: id(entry) in lost), Named(named, only)

    return lose


def lose_launches(entries):
    """The calls in the second half of the window that launched something."""
    first, last = _span(entries)
    answers = {_args(e)["correlation"] for e in entries if is_device(e)}

    def is_lost(entry):
        late = entry.get("ph") == "X" and entry["ts"] > (first + last) / 2
        return late and is_call(entry) and _args(entry)["correlation"] in answers

    count = sum(map(is_lost, entries))
    return without(entries, is_lost), Named({"launch": (count, _works(entries))})


def cut_calls(entries):
    """The last third of all calls in the order of the file, as if it ended there."""
    calls = [entry for entry in entries if is_call(entry)]
    lost = {id(entry) for entry in calls[2 * len(calls) // 3 :]}
    numbers = {_args(e)["correlation"] for e in calls[2 * len(calls) // 3 :]}
    count = sum(is_device(e) and _args(e)["correlation"] in numbers for e in entries)
    left = without(entries, lambda entry: id(entry) in lost)
    return left, Named({"launch": (count, _works(entries))})


def _works(entries):
    return sum(map(is_device, entries))


def lose_host(kind, is_wanted, is_lost):
    """Loses records that the profiler has numbered."""

    def lose(entries):
        mine = sorted((e for e in entries if is_wanted(e)), key=lambda e: _args(e)["Ev Idx"])
        lost = {id(entry) for at, entry in enumerate(mine) if is_lost(at / len(mine), at)}
        left = [entry for entry in entries if id(entry) not in lost]
        return left, Named({kind: (len(lost), len(mine))})

    return lose


def is_operator(entry):
    """Whether an entry is an operator or an annotation."""
    return entry.get("ph") == "X" and entry.get("cat") in {"cpu_op", "user_annotation"}


def is_frame(entry):
    """Whether an entry is a frame of Python."""
    return entry.get("cat") == "python_function"


def is_allocation(entry):
    """Whether an entry is an instant of the allocator."""
    return entry.get("name") == "[memory]"


def end_frames(entries):
    """The frames of the second half, which have the last numbers of all."""
    frames = sorted((e for e in entries if is_frame(e)), key=lambda e: _args(e)["Ev Idx"])
    lost = {id(entry) for entry in frames[len(frames) // 2 :]}
    left = [entry for entry in entries if id(entry) not in lost]
    last = frames[len(frames) // 2 - 1]["ts"]
    operators = [entry["ts"] for entry in entries if entry.get("cat") == "cpu_op"]
    late = sum(time > last for time in operators)
    return left, Named({"frames_end": (late, len(operators))})


def lose_step(entries):
    """The annotation of the second step, on the host and on the device."""
    steps = sorted({e["name"] for e in entries if re.match(r"ProfilerStep#", e.get("name", ""))})
    left = [entry for entry in entries if entry.get("name") != steps[1]]
    return left, Named({"step": (1, len(steps))})


def double(entries):
    """Half of the device's records are in the file twice."""
    work = [entry for entry in entries if is_device(entry)][::2]
    known = [e for e in entries if is_call(e) and _args(e).get("correlation", 0) > 0]
    known += [e for e in entries if e.get("cat") == "cpu_op" and "External id" in _args(e)]
    of = len(known) + _works(entries) + len(work)
    # The profiler's own row of the timeline knows synchronisations beside work.
    of += sum(e.get("cat") == "cuda_sync" for e in entries)
    return entries + [dict(entry) for entry in work], Named({"duplicate": (len(work), of)})


def lose_arrows(entries):
    """Every second arrow that ends at device work whose launch is there."""
    calls = {_args(entry)["correlation"] for entry in entries if is_call(entry)}
    work = [e for e in entries if is_device(e) and _args(e)["correlation"] in calls][::2]
    places = {_place(entry) for entry in work}
    left = [e for e in entries if not (e.get("ph") == "f" and _place(e) in places)]
    return left, Named({"arrow": (len(work), _works(entries))})


def lose_all_arrows(entries):
    """No arrow is left."""
    calls = {_args(entry)["correlation"] for entry in entries if is_call(entry)}
    count = sum(is_device(e) and _args(e)["correlation"] in calls for e in entries)
    left = [entry for entry in entries if entry.get("ph") not in ("s", "f")]
    return left, Named({"arrow": (count, _works(entries))})


def overwrite(number, *, has_arrows):
    """Every third device record bears another correlation."""

    def lose(entries):
        calls = {_args(entry)["correlation"] for entry in entries if is_call(entry)}
        work = [e for e in entries if is_device(e) and _args(e)["correlation"] in calls][::3]
        changed = {id(e): _changed(e, correlation=number(_args(e), work)) for e in work}
        left = [changed.get(id(entry), entry) for entry in entries]
        same = sum(changed[id(e)]["args"] == e["args"] for e in work)
        named = {"correlation": (len(work) - same, _works(entries))}
        if not has_arrows:
            left = [entry for entry in left if entry.get("cat") != "ac2g"]
            due = sum(is_device(e) and _args(e)["correlation"] in calls for e in entries)
            named["arrow"] = (due - named["correlation"][0], _works(entries))
        return left, Named(named)

    return lose


def _changed(entry, **args):
    return entry | {"args": _args(entry) | args}


def move_clock(by_us, kind):
    """The device's clock is off, for its records and the arrows that end at them."""

    def lose(entries):
        streams = {(e["pid"], e["tid"]) for e in entries if is_device(e)}
        left = [
            entry | {"ts": entry["ts"] + by_us}
            if (entry.get("pid"), entry.get("tid")) in streams and entry.get("ph") in "Xf"
            else entry
            for entry in entries
        ]
        return left, Named({kind: (0, _works(entries))})

    return lose


def zero(entries):
    """Kernels in the first half of the file have no duration."""
    kernels = [entry for entry in entries if entry.get("cat") == "kernel"]
    lost = {id(entry) for entry in kernels[: len(kernels) // 2]}
    left = [entry | {"dur": 0} if id(entry) in lost else entry for entry in entries]
    return left, Named({"device_duration": (len(lost), len(kernels))})


ON_H100 = {
    "the first half of the device's records": lose_work(lambda _, when, __: when < 0.5),
    "the second half": lose_work(lambda _, when, __: when >= 0.5),
    "what the device did after the window had ended": lose_work(lambda _, when, __: when > 0.9),
    "a gap in the middle": lose_work(lambda _, when, __: 0.4 < when < 0.6),
    "every third record": lose_work(lambda _, __, at: at % 3 == 0),
    "all records of the device": lose_work(lambda *_: True),
    "the only copy": lose_work(lambda entry, *_: entry["cat"] == "gpu_memcpy"),
    "all memsets": lose_work(lambda entry, *_: entry["cat"] == "gpu_memset"),
    "launches in the second half": lose_launches,
    "calls at the end of the file": cut_calls,
    "operators in the middle": lose_host("operator", is_operator, lambda part, _: 0.3 < part < 0.6),
    "every second operator": lose_host("operator", is_operator, lambda _, at: at % 2),
    "frames of Python in the first half": lose_host("frame", is_frame, lambda part, _: part < 0.5),
    "frames of Python in the second half": end_frames,
    "every tenth frame of Python": lose_host("frame", is_frame, lambda _, at: at % 10 == 5),
    "allocations in the first half": lose_host(
        "allocation", is_allocation, lambda part, _: part < 0.5
    ),
    "records that are there twice": double,
    "every second arrow": lose_arrows,
    "all arrows": lose_all_arrows,
    "correlations that nobody has": overwrite(
        lambda args, _: args["correlation"] + 10**7, has_arrows=True
    ),
    "correlations of zero, without arrows": overwrite(lambda *_: 0, has_arrows=False),
    "one correlation for many, without arrows": overwrite(
        lambda _, work: work[0]["args"]["correlation"], has_arrows=False
    ),
    "a device whose clock is early": move_clock(-5_000, "early"),
    "a device whose clock is late": move_clock(5_000, "late"),
    "kernels without a duration": zero,
}
ON_A100 = {
    "one stream of two": lose_work(lambda entry, *_: _args(entry)["stream"] == 40),
    "all copies": lose_work(lambda entry, *_: entry["cat"] == "gpu_memcpy"),
    "the annotation of a step": lose_step,
}
