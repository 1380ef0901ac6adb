#!/bin/sh
# TaskProlog of slurm.conf, as the user before each task: what it prints as `export` the task has.
# A job that names a server of its own keeps it.
[ -n "$OTEL_EXPORTER_OTLP_ENDPOINT" ] || echo "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
