"""How do the tests get real servers: which versions, built how, kept where?

Each server is a recipe: a folder beside this file that pins its versions, and the Go commands that
turn it into programs. A recipe is built once and kept in the user's cache folder under the hash of
its content. MLflow, W&B and trackio are environments of Python, made from the pins in
``requirements``. As a script it builds all of them, so that the first test run need not wait in
silence.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
REQUIRE = "OTEL_MLPERF_REQUIRE_SERVERS"
STRIP = "-ldflags=-s -w"


class ServersMissingError(Exception):
    """There is neither a build in the cache nor what makes one."""


class Recipe(NamedTuple):
    """How one folder of pinned versions becomes programs."""

    folder: str
    programs: tuple[str, ...]
    command: tuple[str, ...]
    """Run in a copy of the folder; leaves the programs in its ``build`` folder."""
    minutes: int
    """About how long it takes on two cores from empty caches."""


COLLECTOR = Recipe(
    "collector",
    ("otelcol",),
    (
        "go",
        "run",
        "go.opentelemetry.io/collector/cmd/builder@v0.159.0",
        "--config=manifest.yaml",
    ),
    4,
)
JAEGER = Recipe(
    "jaeger",
    ("jaeger",),
    ("go", "build", STRIP, "-o", "build/", "github.com/jaegertracing/jaeger/cmd/jaeger"),
    5,
)
PROMETHEUS = Recipe(
    "prometheus",
    ("prometheus", "promtool"),
    (
        "go",
        "build",
        STRIP,
        "-tags=remove_all_sd",  # discovery in clouds is large and not used
        "-o",
        "build/",
        "github.com/prometheus/prometheus/cmd/prometheus",
        "github.com/prometheus/prometheus/cmd/promtool",
    ),
    2,
)
RECIPES = (COLLECTOR, JAEGER, PROMETHEUS)


class Environment(NamedTuple):
    """What is installed apart, by the pins of its file in ``requirements``."""

    name: str
    check: str
    """Shows that all of it is there, and compiles it for whoever starts it."""

    @property
    def pins(self) -> Path:
        return HERE.parents[1] / "requirements" / f"{self.name}.txt"


MLFLOW = Environment("mlflow", "import mlflow.server; mlflow.server.app")
WANDB = Environment("wandb", "import wandb.cli.cli")
TRACKIO = Environment("trackio", "import trackio.server")
ENVIRONMENTS = (MLFLOW, WANDB, TRACKIO)


def cache_folder() -> Path:
    """Where built servers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "otel_mlperf" / "servers"


def built_folder(recipe: Recipe) -> Path:
    """Where this very version of ``recipe`` is kept, built or not."""
    content = hashlib.sha256(repr((recipe.command, platform.machine())).encode())
    for file in sorted((HERE / recipe.folder).iterdir()):
        content.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return cache_folder() / f"{recipe.folder}-{content.hexdigest()[:16]}"


def program(recipe: Recipe, name: str) -> Path:
    """The path of a recipe's program, building it first when it is not there.

    Raises:
        ServersMissingError: It is not built and there is no Go toolchain.
        RuntimeError: The build failed; the message ends with what Go said.
    """
    target = built_folder(recipe)
    if not target.exists():
        if shutil.which(recipe.command[0]) is None:
            raise ServersMissingError(
                f"{recipe.folder} is not in {cache_folder()} and there is no Go toolchain to build "
                f"it: install Go 1.26 (https://go.dev/dl) and run this again"
            )
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _build(recipe, target)
    return target / name


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, target: Path) -> None:
    print(f"building {recipe.folder}, once, up to {recipe.minutes} minutes", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{recipe.folder}-") as folder:
        work = Path(folder, "work")
        shutil.copytree(HERE / recipe.folder, work)
        environment = os.environ | {"GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        done = subprocess.run(
            recipe.command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise RuntimeError(f"building {recipe.folder} failed, go said:\n{said}")
        finished = Path(folder, "finished")
        finished.mkdir()
        for name in recipe.programs:
            (work / "build" / name).rename(finished / name)
        finished.rename(target)


def python_of(environment: Environment) -> Path:
    """The Python of an environment, which is made when it is not there.

    Raises:
        ServersMissingError: It is not there, and what it needs cannot be had.
    """
    known = repr((sys.version_info[:2], platform.machine())).encode()
    content = hashlib.sha256(environment.pins.read_bytes() + known)
    target = cache_folder() / f"{environment.name}-{content.hexdigest()[:16]}"
    if not target.exists():
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _make_environment(environment, target)
    return target / "bin" / "python"


def packages_of(environment: Environment) -> Path:
    """The folder of its packages, for the path of a Python of the same version."""
    version = "python{}.{}".format(*sys.version_info)
    return python_of(environment).parents[1] / "lib" / version / "site-packages"


def _make_environment(environment: Environment, target: Path) -> None:
    name = environment.name
    print(f"making an environment for {name}, once, up to 2 minutes", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{name}-") as folder:
        finished = Path(folder, "finished")
        python, uv = finished / "bin" / "python", shutil.which("uv")
        pinned = ["--quiet", "--require-hashes", "-r", str(environment.pins)]
        if uv:
            commands = [[uv, "venv", "--quiet", "--python", sys.executable, str(finished)],
                        [uv, "pip", "install", "--python", str(python), *pinned]]  # fmt: skip
        else:
            commands = [[sys.executable, "-m", "venv", str(finished)],
                        [str(python), "-m", "pip", "install", *pinned]]  # fmt: skip
        commands.append([str(python), "-c", environment.check])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
                raise ServersMissingError(
                    f"{name} is not in {cache_folder()} and cannot be installed there by "
                    f"{' '.join(command)}, it said:\n{said}"
                )
        finished.rename(target)


def main() -> int:
    """Builds every server; without Go it says so, which is a failure only where they are required.

    Returns:
        The exit status.
    """
    try:
        for recipe in RECIPES:
            print(program(recipe, recipe.programs[0]).parent)
        for environment in ENVIRONMENTS:
            print(python_of(environment).parents[1])
    except ServersMissingError as reason:
        print(reason, file=sys.stderr)
        return 1 if os.environ.get(REQUIRE) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
