"""How does a test get a machine with GPUs, without one?

``build`` makes the scripted NVML library; a ``Script`` says what it answers; a ``Reader`` is a
process that sees that library instead of the real one. Keys of a GPU, each
after ``N.``: ``uuid``, ``name``,
``utilization GPU MEMORY`` (%), ``encoder``, ``decoder`` (%), ``memory ALL RESERVED USED``,
``power``, ``power_limit`` (mW), ``temperature.SENSOR``, ``threshold.KIND``, ``margin``,
``clock.DOMAIN``, ``clock_limit.DOMAIN`` (MHz), ``throttle``, ``throttle_supported`` (masks),
``throttle_time.POLICY`` (ns), ``performance_state``, ``pcie_generation``, ``pcie_width``, both also
with ``_limit``, ``nvlink.LINK`` (1: up), ``field.ID[.SCOPE] TYPE VALUE``, ``processes``,
``samples``, ``xids 1`` (tells of errors), ``mig 1``, ``mig_places``, ``migN.`` before ``uuid``,
``memory``, ``gpu_instance`` and ``compute_instance``, ``fail.FUNCTION CODE`` and ``lost CODE``.
Keys of the machine: ``gpus``, ``init CODE``, ``hang.FUNCTION 1``, ``event.N GPU XID``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers.running import PATIENCE_S

HERE = Path(__file__).parent

NOT_SUPPORTED, NO_PERMISSION, LOST, MISMATCH, UNKNOWN = 3, 4, 15, 18, 999
UINT, ULL = 1, 3

GIB = 1 << 30

Found = dict[tuple, float]

NAMING = ("hw.id", "hw.model", "hw.name", "hw.parent", "hw.type")
"""Labels that say no more about a series than its device does."""


class CompilerMissingError(Exception):
    """There is no C compiler to build the library with."""


def build(folder: Path) -> Path:
    """The folder that holds the library, for ``LD_LIBRARY_PATH``.

    Raises:
        CompilerMissingError: There is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise CompilerMissingError("there is no C compiler (cc) to build the scripted NVML with")
    target = folder / "libnvidia-ml.so.1"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{target.name}")
    subprocess.run([compiler, *flags, "-o", target, HERE / "fake_nvml.c", "-lpthread"], check=True)
    return folder


def uuid_of(gpu: int) -> str:
    """The UUID of a scripted GPU."""
    return f"GPU-{gpu:08x}-1111-2222-3333-444444444444"


def healthy(gpu: int) -> dict[str, str]:
    """The script of a GPU that gives everything and has no trouble; no two are alike."""
    keys = {
        "uuid": uuid_of(gpu),
        "name": "NVIDIA H100 80GB HBM3",
        "utilization": f"{50 + gpu} {20 + gpu}",
        "encoder": "3 100000",
        "decoder": "4 100000",
        "memory": f"{80 * GIB} {GIB} {(10 + gpu) * GIB}",
        "power": f"{300_500 + gpu}",
        "power_limit": "700000",
        "temperature.0": f"{60 + gpu}",
        "threshold.0": "95",
        "threshold.1": "90",
        "threshold.2": "105",
        "threshold.3": "87",
        "margin": "25",
        "clock.1": "1755",
        "clock.2": "2619",
        "clock_limit.1": "1980",
        "clock_limit.2": "2619",
        "throttle": "0",
        "throttle_supported": "0x1ff",
        "performance_state": "0",
        "pcie_generation": "5",
        "pcie_generation_limit": "5",
        "pcie_width": "16",
        "pcie_width_limit": "16",
        "field.83": f"{ULL} {1_000_001 + gpu}",
        "field.3": f"{ULL} 2",
        "field.4": f"{ULL} 0",
        "field.82": f"{UINT} 71",
        "field.197": f"{ULL} 5000000000",
        "field.198": f"{ULL} 7000000000",
        "field.138.4294967295": f"{ULL} 1000",
        "field.139.4294967295": f"{ULL} 2000",
        "field.94": f"{UINT} 6",
        "field.38": f"{ULL} 0",
        "field.45": f"{ULL} 1",
        "field.142": f"{ULL} 1",
        "field.143": f"{ULL} 0",
        "field.144": f"{ULL} 0",
        "field.145": f"{ULL} 0",
        "xids": "1",
        "processes": "",
        "samples": "",
    }
    keys |= {f"throttle_time.{policy}": str(policy * 1_500_000_000) for policy in range(6)}
    keys |= {f"nvlink.{link}": str(int(link != 3)) for link in range(18)}
    return {f"{gpu}.{key}": value for key, value in keys.items()}


class Script:
    """What the scripted library says; every change is seen by its next call."""

    def __init__(self, path: Path, gpus: int = 0) -> None:
        self.path = path
        self.keys: dict[str, str] = {"gpus": str(gpus)}
        for gpu in range(gpus):
            self.keys |= healthy(gpu)
        self.change({})

    def change(self, keys: dict[str, object], *without: str) -> None:
        """Sets ``keys`` and takes away those that begin with one of ``without``."""
        self.keys |= {key: str(value) for key, value in keys.items()}
        for start in without:
            self.keys = {k: v for k, v in self.keys.items() if not k.startswith(start)}
        text = "".join(f"\n{key} {value}" for key, value in self.keys.items()) + "\n"
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    def environment(self, library: Path) -> dict[str, str]:
        """What a process needs to see the scripted library instead of the real one."""
        return os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_SCRIPT": str(self.path)}


class Reader:
    """A process that reads the GPUs when it is told to, at a time that it is told."""

    def __init__(self, script: Script, library: Path, **options: object) -> None:
        """``options``: ``level``, ``pids`` and ``proc`` of the sensor."""
        command = [sys.executable, HERE / "reader.py", json.dumps(options)]
        self._process = subprocess.Popen(
            command,
            env=script.environment(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def ask(self, what: str, *details: object) -> Any:
        """One answer of ``reader.py``, where the questions are."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *details]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def read(self, after_s: float = 0) -> Found:
        """A pass, ``after_s`` after the last one."""
        if after_s:
            self.ask("wait", after_s)
        return by_key(self.ask("read"))


def by_key(measurements: list) -> Found:
    """Values by metric, device, the labels that tell series apart, and process where it has one."""
    found = {}
    for metric, labels, value, pid, device, _ in measurements:
        telling = [labels[name] for name in sorted(labels) if name not in NAMING]
        key = (metric, device, *telling, *([pid] if pid else []))
        assert key not in found, f"{key} is given twice"
        found[key] = value
    return found


def of_device(found: Found, uuid: str) -> Found:
    """What was said of one device."""
    return {key: value for key, value in found.items() if key[1] == uuid}
