"""How do findings look for programs?"""

from __future__ import annotations

from typing import Any

import msgspec


def to_json(findings: Any) -> str:
    """Findings as indented JSON; times stay nanoseconds, as their names say."""
    return msgspec.json.format(msgspec.json.encode(findings), indent=2).decode()
