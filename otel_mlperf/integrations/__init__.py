"""How does recording get into programs and frameworks that know nothing of it?

What the author of an integration needs is here; ``docs/EXTENDING.md`` has the recipe.
"""

from otel_mlperf.integrations.integration import Integration, harmless
from otel_mlperf.integrations.torch_loop import own_steps

__all__ = ["Integration", "harmless", "own_steps"]
