"""Fixtures shared by tests of different folders."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import time
from contextlib import closing, suppress
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import pytest_randomly
import warm_python
from fault_server import FaultServer
from nvml import scripted
from servers import build
from servers.running import Mlflow
from servers.stack import Stack

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.bulletin import drop_readings
from otel_mlperf.journal.journal_folder import SHARED_MEMORY, SUFFIX
from otel_mlperf.journal.journal_reader import JournalReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.running import Collector


# Started with SIGINT ignored (in the background of a script), every program that a test interrupts
# would ignore it too, and the test would wait for it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tiers", "pytester"]
_JOURNALS = f"{SHARED_MEMORY}/otel_mlperf-{os.getuid()}/*"

# DeepSpeed offers to be seeded before each test: every session would import it, for ten seconds.
pytest_randomly.entrypoint_reseeds = []


def pytest_configure(config: pytest.Config) -> None:
    """Leaves the package itself as it is.

    Because it offers a plugin, pytest would rewrite each of its modules at its import. Two threads
    that do so at once, an agent in a thread and a test, make CPython 3.11 raise a SystemError:
    that agent is gone, and the test waits for it.
    """
    config.pluginmanager.rewrite_hook._must_rewrite.discard("otel_mlperf")
    if address := getattr(config, "workerinput", {}).get("warm_python"):
        warm_python.use_server(address)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Shares one server of warm programs among the processes of pytest-xdist."""
    node.workerinput["warm_python"] = warm_python.server_address()


def pytest_collection_finish() -> None:
    """Exempts the collected tests from garbage collections, pytest's own at the end included.

    They live until the interpreter ends; extension modules expect it to free everything then.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="module", autouse=True)
def no_journals_left() -> Iterator[None]:
    """Takes away what this very process recorded without an agent: it would fill shared memory."""
    yield
    for name in glob(f"{_JOURNALS}/*-{os.getpid()}-*{SUFFIX}"):
        _drop(Path(name))


@pytest.fixture(scope="session", autouse=True)
def no_journals_of_programs_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Takes away what programs of the tests have left there, who ended without an agent."""
    started_s = time.time()
    yield
    ours = str(tmp_path_factory.getbasetemp())
    for name in glob(f"{_JOURNALS}/*{SUFFIX}"):
        # To open thousands of files that earlier test runs left takes longer than many tests.
        if not _is_newer(name, started_s):
            continue
        with suppress(JournalError), closing(JournalReader(name)) as reader:
            if ours in reader.meta.run_folder and not reader.is_owned:
                _drop(Path(name))


def _is_newer(name: str, time_s: float) -> bool:
    try:
        return os.stat(name).st_mtime >= time_s
    except FileNotFoundError:  # its agent has just read it to the end
        return False


def _drop(journal: Path) -> None:
    journal.unlink(missing_ok=True)
    drop_readings(str(journal.parent))
    with suppress(OSError):
        journal.parent.rmdir()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running Collector, Jaeger and Prometheus with the configuration of ``deploy/``."""
    try:
        stack = Stack(tmp_path_factory.mktemp("servers"))
    except build.ServersMissingError as reason:
        _missing(str(reason))
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    """A running MLflow server; the runs of all tests are in its database."""
    try:
        server = Mlflow(tmp_path_factory.mktemp("mlflow"))
    except build.ServersMissingError as reason:
        _missing(str(reason))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def wandb_package() -> Iterator[Path]:
    """The folder that W&B's library is installed in, which this process may load from too."""
    try:
        folder = build.packages_of(build.WANDB)
    except build.ServersMissingError as reason:
        _missing(str(reason))
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def trackio_python() -> Path:
    """The Python of the environment that trackio is installed in."""
    try:
        return build.python_of(build.TRACKIO)
    except build.ServersMissingError as reason:
        _missing(str(reason))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    """An OTLP receiver in a process of its own that fails as it is told."""
    (tmp_path / "server").mkdir()
    with FaultServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def collector(servers: Stack) -> Iterator[Callable[[], Collector]]:
    """Makes Collectors of the test's own, not started, to stop and kill as it likes."""
    made: list[Collector] = []

    def make() -> Collector:
        made.append(servers.another_collector())
        return made[-1]

    yield make
    for one in made:
        one.stop()


def _built(recipe: build.Recipe, name: str) -> Path:
    try:
        return build.program(recipe, name)
    except build.ServersMissingError as reason:
        _missing(str(reason))


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker of its files."""
    return _built(build.PROMETHEUS, "promtool")


@pytest.fixture(scope="session")
def otelcol() -> Path:
    """The Collector, which checks its files too."""
    return _built(build.COLLECTOR, "otelcol")


@pytest.fixture(scope="session")
def jaeger_program() -> Path:
    """Jaeger, likewise."""
    return _built(build.JAEGER, "jaeger")


@pytest.fixture(scope="session")
def go() -> str:
    """The Go toolchain."""
    return shutil.which("go") or _missing("Go is not installed: see https://go.dev/dl")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a scripted ``libnvidia-ml.so.1``, for ``LD_LIBRARY_PATH``."""
    try:
        return scripted.build(tmp_path_factory.mktemp("nvml"))
    except scripted.CompilerMissingError as reason:
        _missing(str(reason))


def _missing(reason: str) -> NoReturn:
    if os.environ.get(build.REQUIRE):
        pytest.fail(f"{build.REQUIRE} is set, but {reason}")
    pytest.skip(reason)
