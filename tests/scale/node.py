"""What is one simulated node? Ranks, their agent, and a host name and shared memory of its own.

    unshare --uts --mount python tests/scale/node.py HOST RUN_ID FIRST_RANK RANKS WORLD

Prints a line when all ranks make steps, another with what the agent has used whenever a line comes
in, and ends when its input does. Everything is real but the work: processes, recorder, journals,
and the agent that the first rank starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from scale import rank

_SUBREAPER = 36
_RANKS_READY_S = 120.0


def main(host: str, run_id: str, first: int, ranks: int, world: int) -> None:
    Path("/proc/sys/kernel/hostname").write_text(host)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
    # The agent leaves its rank; it becomes a child of this process, which so learns what it used.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    heard, over = os.pipe()
    ready, say = os.pipe()
    job = {"OTEL_MLPERF_RUN_ID": run_id, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(ranks)}
    trained = set()
    for local in range(ranks):
        of_rank = {"RANK": str(first + local), "LOCAL_RANK": str(local)}
        # Each rank would start an agent, and all but one would leave again.
        quiet = {
            "OTEL_MLPERF_CONSOLE": "false",
            "OTEL_MLPERF_AGENT": "none" if local else "process",
        }
        trained.add(_fork(job | of_rank | quiet, heard, over, say))
    os.close(say)
    while os.read(ready, ranks):  # until the last rank has closed it
        pass
    agent = psutil.Process(next(iter(_children() - trained)))
    _say(ready=True)
    for _ in sys.stdin:
        _say(cpu_s=_cpu_s(agent), memory_bytes=agent.memory_info().rss)
    os.close(over)
    used = {}
    while True:
        try:
            ended, _, use = os.wait3(0)
        except ChildProcessError:
            break
        used[ended] = use
    use = used.pop(agent.pid)
    _say(
        cpu_s=use.ru_utime + use.ru_stime,
        memory_bytes=use.ru_maxrss * 1024,
        ranks_cpu_s=sum(of.ru_utime + of.ru_stime for of in used.values()),
    )


def _fork(variables: dict[str, str], heard: int, over: int, say: int) -> int:
    """A rank; it tells on ``say`` that it makes steps, and ends when ``over`` is closed."""
    if child := os.fork():
        return child
    os.close(over)
    os.environ |= variables
    poll = select.poll()
    poll.register(heard, select.POLLHUP)
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2 * rank.FAULTY_STEP:
            os.close(say)
        return bool(poll.poll(0))

    code = 1
    try:
        rank.train("scale", is_over)
        code = 0
    finally:
        os._exit(code)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
