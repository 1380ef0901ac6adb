"""Is everything accounted for after so many SIGKILLs at random moments, with eight threads at work?

    python tests/load/kills.py --kills 200

One rank is killed and started again. A thread that was killed was inside a span, which arrives as
interrupted, or between its end and our count: each kill leaves one span to nine more than counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import loads
from runs import adds_up
from servers.running import wait_until

THREADS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    moments = random.Random(given.seed)
    rows = []
    for recorder in ("ours", "sdk"):
        run = {"OTEL_MLPERF_RUN_ID": "0" * 31 + "2"}
        with loads.server() as sink, loads.under(recorder, sink.url, **run) as one:
            for _ in range(given.kills):
                already = one.counted
                process = one.start("--threads", str(THREADS), "--rate", "2000")
                wait_until(lambda: one.counted > already, what="a span")  # noqa: B023 - called here
                time.sleep(moments.uniform(0.0, 0.5))
                process.kill()
                process.wait()
            one.settle()
            arrived = loads.arrived(sink)
            rows.append(one.row(f"{given.kills} SIGKILLs, {THREADS} threads", arrived))
            if recorder == "ours":
                account, more = one.account, one.account["created"] - one.made
                print(f"accounts add up: {adds_up(account)}, lost {account['lost']}")
                print(f"killed in a span, or before it was counted: {more:,}")
                is_exact = adds_up(account) and account["created"] == arrived
                is_exact = is_exact and 0 <= more <= THREADS * given.kills
    loads.show(*rows)
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
