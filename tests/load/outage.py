"""Does everything arrive although the server is away for a while?

python tests/load/outage.py --seconds 10        # 600 for ten minutes
"""

from __future__ import annotations

import argparse
import time

import loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, default=1000)
    given = parser.parse_args()
    name = f"server away for {given.seconds} s, {given.rate:,} spans/s"
    rows = []
    for recorder in ("ours", "sdk"):
        with loads.server() as sink, loads.under(recorder, sink.url) as one:
            one.start("--rate", str(given.rate), "--seconds", str(given.seconds + 14))
            time.sleep(7)
            sink.kill()
            time.sleep(given.seconds)
            sink.start()
            one.wait()
            one.settle()
            if recorder == "ours":
                one.beside = loads.made_by_agent(one)
            rows.append(one.row(name, loads.arrived(sink)))
    loads.show(*rows)


if __name__ == "__main__":
    main()
