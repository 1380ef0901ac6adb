"""The charting library (uPlot) embedded in pages, and the update of its local copy.

uPlot is stored together with its MIT licence. It is the smallest library that supports zooming, a
cursor and bands. To update it, unpack ``npm pack uplot`` into ``FOLDER`` and run
``python -m otel_mlperf.report.page.chart_library FOLDER``. Then replace the checksums below with
those that the command prints.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Final

ASSETS: Final = Path(__file__).parent / "assets"
FOLDER: Final = ASSETS / "uplot"
SCRIPT: Final = "uPlot.iife.min.js"
STYLE: Final = "uPlot.min.css"
LICENCE: Final = "LICENSE"
VERSION: Final = "version.txt"
CHECKSUMS: Final = {
    SCRIPT: "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    STYLE: "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    LICENCE: "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of each file of uPlot as its authors published it."""


def checksums() -> dict[str, str]:
    """Return the SHA-256 of each local file in ``CHECKSUMS``, by file name."""
    return {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in CHECKSUMS}


def renew(package: Path) -> None:
    """Replace the local files of uPlot with those of ``package``, an unpacked npm package.

    Raises:
        OSError: a file of the package is missing.
    """
    for name in (SCRIPT, STYLE):
        shutil.copy(package / "dist" / name, FOLDER / name)
    shutil.copy(package / LICENCE, FOLDER / LICENCE)
    version = json.loads((package / "package.json").read_text())["version"]
    (FOLDER / VERSION).write_text(f"{version}\n")


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
    print(json.dumps(checksums(), indent=4))
