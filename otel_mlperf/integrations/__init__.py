"""Integrations: recording of programs and frameworks without changes to their code.

This package exports the public names for authors of integrations; ``docs/EXTENDING.md`` has the
recipe.
"""

from otel_mlperf.integrations.integration import Integration, harmless
from otel_mlperf.integrations.torch_loop import own_steps

__all__ = ["Integration", "harmless", "own_steps"]
