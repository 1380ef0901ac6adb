"""Does everything arrive at so many spans a second, also beside processes that want the processor?

python tests/load/rate.py --rate 10000 --seconds 60 --busy 2
"""

from __future__ import annotations

import argparse

import loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--trace-every", type=int, default=1, help="100 is what users have")
    given = parser.parse_args()
    name = f"{given.rate:,} spans/s for {given.seconds} s"
    name += f", {given.busy} busy processes beside it" if given.busy else ""
    name += f", from each of {given.ranks} ranks" if given.ranks > 1 else ""
    name += f", one step in {given.trace_every} kept" if given.trace_every > 1 else ""
    rows = []
    for recorder in ("ours", "sdk"):
        kept = {"OTEL_MLPERF_TRACE_EVERY": str(given.trace_every)}
        with loads.server() as sink, loads.under(recorder, sink.url, **kept) as one:
            with loads.busy(given.busy):
                for rank in range(given.ranks):
                    variables = {"RANK": str(rank), "WORLD_SIZE": str(given.ranks)}
                    variables["OTEL_MLPERF_RUN_ID"] = "0" * 31 + "1"
                    one.start(
                        "--rate", str(given.rate), "--seconds", str(given.seconds), **variables
                    )
                one.wait()
            one.settle()
            rows.append(one.row(name, loads.arrived(sink)))
    loads.show(*rows)


if __name__ == "__main__":
    main()
