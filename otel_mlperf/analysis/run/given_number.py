"""JSON type of a number from the program; non-finite values become null."""

from __future__ import annotations

from typing import Annotated

import msgspec

JsonNumber = Annotated[float, msgspec.Meta(extra_json_schema={"nullable": True})]
"""A number as passed by the program; non-finite values are null in JSON."""
