"""Which dashboards are shipped? Writes them: ``python deploy/grafana/build [FOLDER]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import gpus
import health
import host
import ranks
import sections
import training_run

DASHBOARDS: Final = (
    training_run.DASHBOARD,
    ranks.DASHBOARD,
    sections.DASHBOARD,
    gpus.DASHBOARD,
    host.DASHBOARD,
    health.DASHBOARD,
)
_SHIPPED: Final = Path(__file__).resolve().parents[1] / "dashboards"


def main() -> None:
    """Writes every dashboard into the folder that is named, or into the one that is shipped."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _SHIPPED
    for dashboard in DASHBOARDS:
        text = json.dumps(dashboard.json(), indent=2, ensure_ascii=False)
        (folder / f"{dashboard.name}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
