"""Files of a private /proc and /sys for sensors, and readers of the results."""

from __future__ import annotations

from pathlib import Path


def write_files(root, files):
    """Writes texts by their path below ``root``; gives ``root`` back."""
    for path, text in files.items():
        target = Path(root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return Path(root)


def values(measurements):
    """Values by metric and labels in order: ``{("system.cpu.time", "user"): 1.5}``."""
    found = {(m.metric, *m.labels.values()): m.value for m in measurements}
    assert len(found) == len(measurements), "two points of one series"
    return found


def of(metric, measurements):
    """Values of one metric by its labels: ``{("user",): 1.5}``."""
    return {key[1:]: value for key, value in values(measurements).items() if key[0] == metric.name}
