"""Puts one secret into every place where a program can say something of its own."""

from __future__ import annotations

import argparse
import contextlib
import sys

import otel_mlperf as om


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count")
    parser.add_argument("--secret", default="")
    secret = parser.parse_args().secret
    named = {"api_key": secret, "url": f"https://me:{secret}@example.com/data"}
    run = om.start("secretive", params={"hub": named, "lr": 0.1}, tags=[f"token={secret}"])

    @om.span("decorated", **named)
    def decorated() -> None:
        counter.add(1, {"password": secret})

    counter = om.counter("calls")
    for _ in om.steps(range(3)):
        decorated()
        with om.span("given", note=f"PGPASSWORD={secret}", **{"hf.token": secret}):
            pass
        with contextlib.suppress(ValueError), om.span("failing"):
            raise ValueError(f"--api-key {secret} was refused")
    run.result(api_key=secret, accuracy=0.5)
    run.stop()


if __name__ == "__main__":
    sys.exit(main())
