"""How long does a program take to end whose server refuses, or takes everything and says nothing?

python tests/load/dead_server.py
"""

from __future__ import annotations

import argparse

import loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=2_000)
    given = parser.parse_args()
    rows = []
    for state in ("refuses", "is silent"):
        for recorder in ("ours", "sdk"):
            drain = {"OTEL_MLPERF_DRAIN_TIMEOUT_S": "0"}
            with loads.server() as sink, loads.under(recorder, sink.url, **drain) as one:
                if state == "refuses":
                    sink.kill()
                else:
                    sink.pause()
                one.start("--count", str(given.count), "--rate", str(given.rate))
                one.wait()
                one.settle()
                name = f"end with a server that {state}, {given.count:,} spans"
                rows.append(one.row(name, loads.arrived(sink)))
    loads.show(*rows)


if __name__ == "__main__":
    main()
