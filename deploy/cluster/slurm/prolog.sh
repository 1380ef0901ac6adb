#!/bin/sh
# Prolog of slurm.conf, as root on each node of a job: is the node's Collector there?
# It ends well in any case: a Prolog that fails drains the node, and the agent waits for a server anyway.
systemctl start otel-node.service || logger -t otel-mlperf "job $SLURM_JOB_ID: otel-node.service did not start"
exit 0
