"""Does everything arrive that is made as fast as one thread, or 64 of them, can?

python tests/load/at_once.py --count 100000 --threads 64
"""

from __future__ import annotations

import argparse

import loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    name = f"{given.count:,} spans at once"
    name += f" from {given.threads} threads" if given.threads else ""
    rows = []
    for recorder in ("ours", "sdk"):
        with loads.server() as sink, loads.under(recorder, sink.url) as one:
            one.start("--count", str(given.count), "--threads", str(given.threads))
            one.wait()
            one.settle()
            rows.append(one.row(name, loads.arrived(sink)))
    loads.show(*rows)


if __name__ == "__main__":
    main()
