"""Entry point of ``python -m otel_mlperf``, equivalent to the command ``otel-mlperf``."""

from __future__ import annotations

from otel_mlperf.cli import main

if __name__ == "__main__":
    main()
