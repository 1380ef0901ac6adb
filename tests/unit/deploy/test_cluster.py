"""What is shipped for many machines is consistent, as far as no engine is needed to check it.

What the chain does when it runs, and when parts of it are killed, is seen by ``make cluster``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).resolve().parents[3] / "deploy" / "cluster"
COLLECTOR = CLUSTER / "collector"
SERVICES = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]
MANIFESTS = [
    manifest
    for file in sorted((CLUSTER / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
]
WORKLOADS = {
    manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
    for manifest in MANIFESTS
    if "template" in manifest.get("spec", {})
}

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
each_workload = pytest.mark.parametrize("pod", WORKLOADS.values(), ids=WORKLOADS.keys())


def config(name: str) -> dict:
    return yaml.safe_load((COLLECTOR / name).read_text())


def validated(program: Path, files: list[Path], **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [program, "validate", *(f"--config={file}" for file in files)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("gateways", ["dns", "static"])
def test_the_node_s_collector_takes_its_files(gateways, otelcol):
    """The real Collector finds nothing wrong with either way to name the gateways."""
    files = [COLLECTOR / "node.yaml", COLLECTOR / f"gateways-{gateways}.yaml"]
    done = validated(otelcol, files, GATEWAYS="[127.0.0.1:1, 127.0.0.1:2]")

    assert done.returncode == 0, done.stderr


def test_jaeger_takes_its_files(jaeger_program):
    """The real Jaeger finds nothing wrong with OpenSearch as its storage, with a password too."""
    files = [CLUSTER / "jaeger" / name for name in ("config.yaml", "opensearch-credentials.yaml")]
    done = validated(jaeger_program, files, OPENSEARCH_USERNAME="reader")

    assert done.returncode == 0, done.stderr


def test_nothing_answers_before_the_next_one_has():
    """No queue lies between an agent and Kafka, nor between Kafka and the stores."""
    node, gateway, consumer = map(config, ("node.yaml", "gateway.yaml", "consumer.yaml"))
    for exporter in node["exporters"].values():
        assert exporter["protocol"]["otlp"]["sending_queue"] == {"enabled": False}
    stored = consumer["exporters"]
    for exporter in (gateway["exporters"]["kafka"], stored["otlp_grpc/jaeger"]):
        assert exporter["sending_queue"] == {"enabled": False}
    assert stored["prometheus_remote_write"]["remote_write_queue"] == {"enabled": False}
    assert consumer["receivers"]["kafka"]["message_marking"]["after"] is True
    assert gateway["exporters"]["kafka"]["producer"]["required_acks"] == -1
    for file in (node, gateway, consumer):
        assert not [one for one in file["processors"] if one.startswith("batch")]


def test_each_waits_longer_than_the_one_behind_it():
    """Agent, node and gateway give up in this order, so that no answer comes to nobody."""
    timeouts = (
        config("node.yaml")["exporters"]["load_balancing/traces"]["protocol"]["otlp"]["timeout"],
        config("gateway.yaml")["exporters"]["kafka"]["timeout"],
    )

    assert [int(one.removesuffix("s")) for one in timeouts] == [8, 5]


def test_the_same_attributes_become_labels():
    """Remote write has the labels that Prometheus makes of OTLP, for dashboards and alerts."""
    prometheus = yaml.safe_load((CLUSTER.parent / "prometheus" / "prometheus.yml").read_text())
    promoted = prometheus["otlp"]["promote_resource_attributes"]
    (group,) = config("consumer.yaml")["processors"]["transform/labels"]["metric_statements"]

    assert group["statements"] == [
        f'set(datapoint.attributes["{name}"], resource.attributes["{name}"])'
        f' where resource.attributes["{name}"] != nil'
        for name in promoted
    ]


def test_topics_are_read_that_are_written():
    """Gateways, with sampling or without, and consumers name the same topics."""
    written, sampled = config("gateway.yaml"), config("tail-sampling.yaml")
    read = config("consumer.yaml")["receivers"]["kafka"]
    kafka = written["exporters"]["kafka"]

    assert [kafka["traces"]["topic"]] == read["traces"]["topics"]
    assert [kafka["metrics"]["topic"]] == read["metrics"]["topics"]
    assert sampled["exporters"]["kafka/sampled"]["traces"] == kafka["traces"]


def test_the_compose_file_loads(go):
    """Docker Compose's own loader accepts the file."""
    loaded = subprocess.run(
        [go, "run", "github.com/compose-spec/compose-go/v2/cmd@v2.16.2", CLUSTER / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.fault("S1")
@each_service
def test_ports_are_open_on_loopback_only(service):
    """Published ports bypass the firewall, so each one names 127.0.0.1."""
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.fault("S4")
@each_service
def test_services_are_closed_pinned_and_bounded(service):
    """No root, no capabilities, a full version, limits; every mounted file exists, read-only."""
    assert not service["user"].startswith("0:")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r":v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$", service["image"])
    assert service["deploy"]["resources"]["limits"].keys() == {"memory", "cpus", "pids"}
    for volume in service.get("volumes", []):
        source, _, mode = volume.split(":") if volume.startswith(".") else (".", "", "ro")
        assert (CLUSTER / source).exists()
        assert mode == "ro"


@pytest.mark.fault("S4")
@each_workload
def test_pods_are_closed_pinned_and_bounded(pod):
    """What the compose file gives a service, the manifests give a pod, and probes besides."""
    (container,) = pod["containers"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] in {service["image"] for service in SERVICES.values()}
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    assert {"readinessProbe", "livenessProbe"} <= container.keys()


@pytest.mark.fault("S3")
@each_workload
def test_passwords_come_from_secrets(pod):
    """No manifest holds one: each is named, and is made by whoever installs."""
    assert "Secret" not in {manifest["kind"] for manifest in MANIFESTS}
    for variable in pod["containers"][0]["env"]:
        if variable["name"].endswith(("USERNAME", "PASSWORD")):
            assert variable["valueFrom"].keys() == {"secretKeyRef"}


def test_every_mounted_file_is_in_a_config_map():
    """What a container is started with lies in the folder that its ConfigMap is mounted at."""
    kustomization = yaml.safe_load((CLUSTER / "kustomization.yaml").read_text())
    files = {
        one["name"]: {Path(file).name for file in one["files"]}
        for one in kustomization["configMapGenerator"]
    }
    for pod in WORKLOADS.values():
        (name,) = (one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one)
        assert {Path(one).name for one in pod["containers"][0]["args"]} <= files[name]
    listed = {CLUSTER / one for one in kustomization["resources"]}
    assert listed == set((CLUSTER / "kubernetes").glob("*.yaml"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_what_systemd_knows(otelcol, tmp_path):
    """No setting is unknown to systemd, once the Collector is where it is said."""
    text = (CLUSTER / "systemd" / "otel-node.service").read_text()
    unit = tmp_path / "otel-node.service"
    unit.write_text(text.replace("/usr/local/bin/otelcol", str(otelcol)))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )

    assert str(otelcol) in unit.read_text()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$SAID"
exit 1
"""


@pytest.fixture
def slurm(tmp_path):
    """Runs a script of Slurm's where every program that it calls fails; says what it called."""
    for name in ("systemctl", "runuser", "logger"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)

    def run(name, **variables):
        said = tmp_path / "said"
        done = subprocess.run(
            [CLUSTER / "slurm" / name],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(said)} | variables,
            capture_output=True,
            text=True,
            check=True,  # any other status drains the node
        )
        return done.stdout, said.read_text().splitlines() if said.exists() else []

    return run


def test_a_node_is_not_drained_for_telemetry(slurm):
    """Prolog and epilog end well although all that they call fails; the system's log says so."""
    _, prolog = slurm("prolog.sh", SLURM_JOB_ID="7")
    _, both = slurm("epilog.sh", SLURM_JOB_ID="7", SLURM_JOB_USER="ada")

    assert prolog[0] == "systemctl start otel-node.service"
    assert prolog[1].startswith("logger -t otel-mlperf job 7")
    assert both[2] == "runuser -u ada -- timeout 60 otel-mlperf doctor --recover"
    assert both[3].startswith("logger -t otel-mlperf job 7")


def test_tasks_are_told_of_their_node_s_collector(slurm):
    """A task has the endpoint of its node, unless its job names another."""
    told, _ = slurm("task-prolog.sh")
    untold, _ = slurm("task-prolog.sh", OTEL_EXPORTER_OTLP_ENDPOINT="http://elsewhere:4318")

    assert told == "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318\n"
    assert untold == ""
