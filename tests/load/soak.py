"""Does nothing get lost and nothing grow while a fault strikes every half minute?

    python tests/load/soak.py --minutes 20 --with ours sdk

Only what the server claims to have rejected has to be lost: that much, and no more, is counted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from contextlib import suppress

import loads
import psutil
from runs import adds_up, agent_of

REJECTED = 3


def server_dies(sink, _):
    sink.kill()
    time.sleep(5)
    sink.start()


def server_is_silent(sink, _):
    sink.pause()
    time.sleep(8)
    sink.resume()


def server_is_overloaded(sink, _):
    sink.mode("status", code=503, headers={"Retry-After": "2"})
    time.sleep(5)
    sink.mode("ok")


def server_wants_less(sink, _):
    sink.mode("status", code=413, times=2)


def answer_is_lost(sink, _):
    sink.mode("reset", keep=True, times=1, signal="traces")


def part_is_rejected(sink, _):
    sink.mode("partial", rejected=REJECTED, times=1, signal="traces")


def agent_dies(_, agent):
    if agent:
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGKILL)


def agent_gets_no_processor(_, agent):
    if agent:
        loads.stop_for(agent, 10)


FAULTS = (
    server_dies, server_is_silent, agent_dies, server_is_overloaded, server_wants_less,
    agent_gets_no_processor, answer_is_lost, part_is_rejected,
)  # fmt: skip


def growth_bytes(seen: list[int]) -> int:
    """From the second quarter to the last one; the first is for warming up."""
    quarter = len(seen) // 4
    if quarter == 0:
        return 0
    return int(statistics.median(seen[-quarter:]) - statistics.median(seen[quarter : 2 * quarter]))


def strike(one, sink, minutes: float, every_s: float) -> tuple[int, list[int]]:
    """One fault after the other; how many spans were said to be rejected, and the job's memory."""
    claimed, memory, until = 0, [], time.monotonic() + 60 * minutes
    job = psutil.Process(one.processes[0].pid)
    for fault in itertools.cycle(FAULTS):
        following = time.monotonic() + every_s
        # The last fault leaves time to go on after it.
        if following > until:
            return claimed, memory
        while time.monotonic() < following:
            memory.append(job.memory_info().rss)
            time.sleep(1)
        fault(sink, agent_of(one.runs))
        claimed += REJECTED * (fault is part_is_rejected)
    raise AssertionError("a cycle has no end")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--every-s", type=float, default=30)
    parser.add_argument("--with", dest="recorders", nargs="+", default=["ours"])
    given = parser.parse_args()
    rows, is_exact = [], True
    for recorder in given.recorders:
        with loads.server() as sink, loads.under(recorder, sink.url) as one:
            one.start("--rate", str(given.rate), "--seconds", str(60 * given.minutes))
            claimed, memory = strike(one, sink, given.minutes, given.every_s)
            one.wait()
            one.settle()
            if recorder == "sdk":
                claimed = 0  # it takes no notice of what is rejected
            else:
                one.beside = loads.made_by_agent(one)
            arrived = loads.arrived(sink) - claimed
            rows.append(
                one.row(f"{given.minutes:g} min, a fault every {given.every_s:g} s", arrived)
            )
            print(f"{recorder}: job grew by {growth_bytes(memory) / loads.MIB:.1f} MiB", end="")
            print(f", agent by {growth_bytes(one.memory.seen_bytes) / loads.MIB:.1f} MiB")
            if recorder == "ours":
                account = one.account
                print(f"accounts add up: {adds_up(account)}, lost {account['lost']}")
                is_exact = adds_up(account) and sum(account["lost"].values()) == claimed
                is_exact = is_exact and one.made == arrived + claimed
    loads.show(*rows)
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
