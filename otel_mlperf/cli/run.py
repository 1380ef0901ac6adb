"""``otel-mlperf run``: recording of an unmodified program.

Only the standard library and the modules that start the program are imported, because this process
becomes the user's program.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from otel_mlperf.errors import ConfigError, UsageError
from otel_mlperf.integrations.program_launch import ProgramRequest, become_program
from otel_mlperf.settings.config import LEVELS
from otel_mlperf.settings.profile_schedule import schedule_text

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """\
Usage: otel-mlperf run [OPTIONS] SCRIPT [ARGUMENTS]...
       otel-mlperf run [OPTIONS] -m MODULE [ARGUMENTS]...
       otel-mlperf run [OPTIONS] -c CODE [ARGUMENTS]...
       otel-mlperf run [OPTIONS] - [ARGUMENTS]...
       otel-mlperf run [OPTIONS] -- COMMAND [ARGUMENTS]...

Run a program as `python` would, and record it. Steps, data wait, forward, backward and optimizer of
a PyTorch loop are detected; for a program that calls otel_mlperf, its own sections are recorded.
Everything after SCRIPT, MODULE or COMMAND is passed to the program. With `--`, COMMAND is started
unchanged, and the Python programs that it starts are recorded.

Examples:
  otel-mlperf run train.py --lr 1e-3
  otel-mlperf run -m package.train --lr 1e-3
  otel-mlperf run -- torchrun --nproc-per-node 2 train.py --lr 1e-3
  torchrun --nproc-per-node 2 -m otel_mlperf run train.py --lr 1e-3

Options:
  --name NAME         Name of the run (default: the name of the script or module).
  --profile SCHEDULE  Steps that torch.profiler records, e.g. wait=10,warmup=1,active=3,repeat=2
                      (the arguments of otel_mlperf.torch_profile), or `on`.
  --level LEVEL       How much to record: off, light, basic, detailed or comprehensive.
  --help              Show this message and exit.

Settings come from the environment variables OTEL_MLPERF_* and OTEL_*.
"""


_VALUES: Final = {"--name": "NAME", "--profile": "SCHEDULE", "--level": "LEVEL"}


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process with the program in ``arguments``, which follow the word ``run``.

    Raises:
        ConfigError: the settings are invalid, which the program could report only too late.
        NoSuchProgram: the script, module or command does not exist.
        UsageError: the options before the program are invalid, or the program is missing.
    """
    if arguments and arguments[0] in {"--help", "-h"}:
        print(USAGE, end="")
        sys.exit(0)
    become_program(parse_arguments(arguments))


def parse_arguments(arguments: Sequence[str]) -> ProgramRequest:
    """Parse the options of ``run``, and the user's program with its own arguments after them."""
    rest = list(arguments)
    given: dict[str, str] = {}
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option, _, value = rest.pop(0).partition("=")
        if option not in _VALUES:
            raise UsageError(
                f"run: no such option {option}; options of the program come after its name"
            )
        given[option] = value or (rest.pop(0) if rest else "")
        if not given[option]:
            placeholder = _VALUES[option]
            raise UsageError(f"run: {option} needs a {placeholder.lower()}: {option} {placeholder}")
    is_command = rest[:1] == ["--"]
    if is_command:
        rest.pop(0)
    if not rest or rest in (["-m"], ["-c"]):
        raise UsageError("run: no program; pass a script, -m MODULE, -c CODE or -- COMMAND")
    if not is_command and rest[0].startswith("-") and rest[0] not in {"-m", "-c", "-"}:
        raise UsageError(
            f"run: no such option {rest[0]}; options of Python come first: python {rest[0]} …"
        )
    return ProgramRequest(
        given.get("--name"),
        rest,
        is_command,
        _schedule(given.get("--profile", "")),
        _level(given.get("--level", "")),
    )


def _level(level: str) -> str:
    if level and level not in LEVELS:
        raise UsageError(f"run: --level {level}: expected one of {', '.join(LEVELS)}")
    return level


def _schedule(text: str) -> str:
    try:
        return schedule_text(text)
    except ConfigError as error:
        raise UsageError(f"run: --profile {text}: {error}") from None
