"""The compose stack is closed to others, pinned and bounded."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())


@pytest.mark.fault("S1")
@each_service
def test_ports_are_open_on_loopback_only(service):
    """Published ports bypass the firewall, so each one names 127.0.0.1."""
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.fault("S4")
@each_service
def test_services_have_no_privileges(service):
    """Read-only, without capabilities and without ways to gain any."""
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service.get("network_mode") != "host"
    assert "docker.sock" not in str(service.get("volumes"))


@pytest.mark.fault("S4")
def test_only_what_hands_over_volumes_runs_as_root():
    """Root, and three capabilities, are for the one-shot service without a network."""
    roots = {name for name, one in SERVICES.items() if one["user"].startswith("0:")}

    assert roots == {"init"}
    assert {name for name, one in SERVICES.items() if "cap_add" in one} == roots
    assert SERVICES["init"]["network_mode"] == "none"
    assert SERVICES["init"]["restart"] == "no"


@pytest.mark.fault("S5")
@each_service
def test_images_are_pinned(service):
    """An image names a full version, with or without its digest."""
    assert re.search(r":v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$", service["image"])


DOCKER = """#!/bin/sh
# Answers as `docker buildx imagetools inspect IMAGE --format …` does.
echo "sha256:$(printf '%s' "$4" | sha256sum | cut -c1-64)"
"""


@pytest.fixture
def pinning(tmp_path):
    """Pins the images of a copy of the stack, by a registry that answers as ``docker`` says."""

    def pin(docker=DOCKER):
        for name in ("compose.yaml", "pin-images.sh"):
            if not (tmp_path / name).exists():
                shutil.copy(DEPLOY / name, tmp_path)
        (tmp_path / "docker").write_text(docker)
        (tmp_path / "docker").chmod(0o755)
        done = subprocess.run(
            [tmp_path / "pin-images.sh"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, yaml.safe_load((tmp_path / "compose.yaml").read_text())

    return pin


@pytest.mark.fault("S5")
def test_images_can_be_pinned_by_digest(pinning):
    """One command writes what the registry says and nothing else; again it changes nothing."""
    done, pinned = pinning()
    images = {name: service["image"] for name, service in SERVICES.items()}

    assert done.returncode == 0, done.stderr
    for name, image in images.items():
        digest = hashlib.sha256(image.encode()).hexdigest()
        assert pinned["services"][name].pop("image") == f"{image}@sha256:{digest}"
    assert pinned["services"]["jaeger"]["ports"] == SERVICES["jaeger"]["ports"]
    assert pinning()[1]["services"]["init"]["image"].count("@") == 1


@pytest.mark.fault("S5")
def test_no_digest_pins_nothing(pinning):
    """Where the registry does not answer with one, the file stays as it was, and it is said."""
    done, unchanged = pinning("#!/bin/sh\necho not found\n")

    assert done.returncode == 1
    assert "no digest of busybox" in done.stderr
    assert unchanged == COMPOSE


@pytest.mark.fault("S4")
@each_service
def test_services_are_bounded(service):
    """Memory, processors, processes and logs have limits."""
    limits = service["deploy"]["resources"]["limits"]
    assert limits.keys() == {"memory", "cpus", "pids"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


@each_service
def test_mounted_files_exist_and_are_read_only(service):
    """A missing file would be made by Docker, as a folder of root's."""
    for volume in service.get("volumes", []):
        if volume.startswith("./"):
            source, _, mode = volume.split(":")
            assert (DEPLOY / source).exists()
            assert mode == "ro"


@pytest.mark.fault("S3")
def test_grafana_asks_who_you_are():
    """No anonymous visitors, no sign-up, and the password comes from a file."""
    environment = SERVICES["grafana"]["environment"]

    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert environment["GF_SECURITY_DISABLE_GRAVATAR"] == "true"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in environment
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"].startswith("/")


@pytest.mark.fault("S3")
def test_no_password_is_written_down():
    """No file of the stack holds a password, a token or a key."""
    literal = re.compile(
        r"(?i)(password|token|secret_?key)[ \t]*[:=][ \t]*[\"']?(?!false\b)[^\s\"'/$&{]"
    )
    for file in DEPLOY.rglob("*"):
        if file.is_file() and not {"secrets", "__pycache__"} & set(file.parts):
            assert not literal.search(file.read_text()), file


@pytest.mark.fault("S2")
def test_prometheus_has_no_doors_it_does_not_need():
    """Nobody can delete series, stop the server or write by another way than OTLP."""
    flags = {flag.split("=")[0] for flag in SERVICES["prometheus"]["command"]}

    assert "--web.enable-otlp-receiver" in flags
    assert not flags & {
        "--web.enable-admin-api",
        "--web.enable-lifecycle",
        "--web.enable-remote-write-receiver",
    }


@pytest.mark.fault("S2")
@pytest.mark.parametrize("name", ["collector", "jaeger"])
def test_debugging_doors_are_shut(name):
    """Neither profiles nor internal pages are served."""
    extensions = yaml.safe_load((DEPLOY / name / "config.yaml").read_text())["extensions"]

    assert not {one.split("/")[0] for one in extensions} & {"pprof", "zpages", "remote_sampling"}


@pytest.mark.fault("S3")
def test_the_secret_is_made_once_and_for_one(tmp_path):
    """The password is long, random, readable by its owner alone, and stays when made again."""
    script = shutil.copy(DEPLOY / "create-secret.sh", tmp_path)
    file = tmp_path / "secrets" / "grafana_admin_password"
    subprocess.run([script], check=True, capture_output=True)
    made = file.read_text()
    said = subprocess.run([script], check=True, capture_output=True, text=True).stdout

    assert len(made) >= 24
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.read_text() == made
    assert made not in said
