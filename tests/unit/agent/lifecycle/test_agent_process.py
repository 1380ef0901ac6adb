"""The agent yields to the job, except its most urgent thread, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys

from otel_mlperf.own_processes import command

LOWEST = 19
"""The kernel has no lower priority: whoever runs the tests may have taken some of it."""
PROGRAM = """
import os, threading
from otel_mlperf.agent.lifecycle.agent_process import lower_priority

ended = threading.Event()
urgent, other = (threading.Thread(target=ended.wait) for _ in range(2))
urgent.start(), other.start()
nice = os.getpriority(os.PRIO_PROCESS, 0)
for _ in range(2):
    lower_priority(nice, urgent.native_id)
threads = (threading.main_thread(), urgent, other)
print(*(os.getpriority(os.PRIO_PROCESS, thread.native_id) - nice for thread in threads))
ended.set()
"""


def test_who_makes_room_keeps_its_priority():
    """All other threads give way to the job, however often they are told to."""
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)

    room = min(10, LOWEST - os.getpriority(os.PRIO_PROCESS, 0))
    assert output.split() == [str(room), "0", str(room)]


def test_an_agent_that_comes_after_the_last_journal_leaves_nothing(tmp_path):
    """Its lock keeps the one that has read all from removing the folder, so it does that itself."""
    folder = tmp_path / "journals"
    folder.mkdir(mode=0o700)

    ended = subprocess.run(
        command("otel_mlperf.agent.__main__", str(folder / "0-17-1.journal")), check=False
    )

    assert ended.returncode == 0
    assert not folder.exists()
