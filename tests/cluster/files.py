"""Do the programs that read the files of ``deploy/cluster`` take them?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cluster import engines
from cluster.chain import CLUSTER
from servers import build

CREDENTIALS = {"KAFKA_USERNAME": "writer", "KAFKA_PASSWORD": "from a secret"}


def run(*command, **variables) -> subprocess.CompletedProcess:
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "files",
    [
        ["gateway"],
        ["gateway", "tail-sampling"],
        ["gateway", "kafka-credentials"],
        ["consumer"],
        ["consumer", "kafka-credentials"],
    ],
    ids="+".join,
)
def test_collectors_take_their_files(files):
    """The real Collector, with the components of the chain, finds nothing wrong."""
    if reason := engines.missing("go"):
        pytest.skip(reason)
    otelcol = build.program(engines.COLLECTOR, "otelcol")
    given = [f"--config={CLUSTER}/collector/{name}.yaml" for name in files]
    done = run(otelcol, "validate", *given, **CREDENTIALS)

    assert done.returncode == 0, done.stderr


def test_manifests_are_what_kubernetes_knows(tmp_path):
    """Put together by kubectl, each is valid against its schema, without a property too many."""
    if reason := engines.missing("go"):
        pytest.skip(reason)
    pytest.importorskip("kubernetes_validate", reason="`make cluster` installs it")
    made = run(build.program(engines.KUBECTL, "kubectl"), "kustomize", CLUSTER)
    assert made.returncode == 0, made.stderr
    (tmp_path / "all.yaml").write_text(made.stdout)
    checked = run(sys.executable, "-m", "kubernetes_validate", "--strict", tmp_path / "all.yaml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
