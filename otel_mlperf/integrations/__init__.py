"""Integrations: recording of programs and frameworks that do not know this package.

The author of an integration finds the public names here; ``docs/EXTENDING.md`` has the recipe.
"""

from otel_mlperf.integrations.integration import Integration, harmless
from otel_mlperf.integrations.torch_loop import own_steps

__all__ = ["Integration", "harmless", "own_steps"]
