"""How does one machine look like two, each with a network, a memory and a name of its own?

A machine is a set of namespaces: what is started inside sees no process, network or shared memory
of another. All are at one bridge, whose addresses the gateways listen at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from servers.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of the addresses that RFC 2544 sets aside for tests: no network outside has them.
BRIDGE = "198.18.77"
AT_BRIDGE = (f"{BRIDGE}.1", f"{BRIDGE}.2")
"""Where the bridge itself is reached: a gateway at each."""
GATEWAYS = "gateways"
"""The name of both, in the hosts file of each machine."""
NEEDED = ("ip", "unshare", "nsenter", "mount", "hostname")
NAMESPACES = ("--net", "--mount", "--uts", "--pid")

_FURNISH = """mount -t tmpfs tmpfs /dev/shm
mount --bind "$1" /etc/hosts
hostname "$2"
ip link set lo up
exec sleep infinity
"""


def missing() -> str:
    """What keeps machines from being made here; empty when nothing does."""
    absent = [program for program in NEEDED if shutil.which(program) is None]
    if absent:
        return f"two machines need {' and '.join(absent)}, not found here"
    tried = ["unshare", *NAMESPACES, "--fork", "ip", "link", "add", "name", "b", "type", "bridge"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return f"no namespaces or no bridge here: {done.stderr.strip()}" if done.returncode else ""


class Machine:
    """Namespaces that live as long as their first process."""

    def __init__(self, number: int, hosts: Path) -> None:
        self.name, self.address = f"machine-{number}", f"{BRIDGE}.{10 + number}"
        furnish = ["sh", "-euc", _FURNISH, "sh", str(hosts), self.name]
        ended_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        made = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *furnish]
        self._process = subprocess.Popen([*ended_with_us, *made])
        self._first = wait_until(self._furnished, what=f"{self.name} to be there")
        self.inside = ["nsenter", f"--target={self._first}", *NAMESPACES, "--"]

    def connect(self, bridge: str) -> None:
        """Puts it at the bridge, with its address."""
        link = f"omlp{self._first}"  # a link outlives its machine for a moment
        _ip(f"link add {link} type veth peer name eth0 netns {self._first}")
        _ip(f"link set {link} master {bridge} up")
        for command in (f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            subprocess.run([*self.inside, "ip", *command.split()], check=True)

    def is_left(self, run_id: str) -> bool:
        """Whether no agent of the run is here any more, and no journal."""
        memory = Path(f"/proc/{self._first}/root/dev/shm/otel_mlperf-{os.getuid()}")
        return not any(memory.glob(f"{run_id}*"))

    def end(self) -> None:
        """Ends all that runs inside."""
        self._process.kill()
        self._process.wait()

    def _furnished(self) -> int:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} cannot be made: status {self._process.returncode}")
        children = psutil.Process(self._process.pid).children()
        return next((one.pid for one in children if one.name() == "sleep"), 0)


@contextmanager
def machines(hosts: Path, count: int = 2) -> Iterator[list[Machine]]:
    """So many machines at one bridge, with one hosts file; nothing of them is left behind."""
    with ExitStack() as stack:
        bridge = f"omlp{os.getpid()}"
        _ip(f"link add name {bridge} type bridge")
        stack.callback(_ip, f"link del {bridge}")
        for address in AT_BRIDGE:
            _ip(f"addr add {address}/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        made = []
        for number in range(count):
            made.append(Machine(number, hosts))
            stack.callback(made[-1].end)
            made[-1].connect(bridge)
        yield made


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)
