"""Does everything arrive that forked children record, ten at a time, each ending by os._exit?

python tests/load/forks.py --forks 100
"""

from __future__ import annotations

import argparse

import loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forks", type=int, default=100)
    given = parser.parse_args()
    rows = []
    for recorder in ("ours", "sdk"):
        with loads.server() as sink, loads.under(recorder, sink.url) as one:
            one.start("--forks", str(given.forks))
            one.wait()
            one.settle()
            rows.append(one.row(f"{given.forks} forks of 50 spans", loads.arrived(sink)))
    loads.show(*rows)


if __name__ == "__main__":
    main()
