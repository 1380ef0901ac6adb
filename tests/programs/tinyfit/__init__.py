"""An invented training framework, which knows nothing of who may watch it."""

from tinyfit.trainer import Trainer

__all__ = ["Trainer"]
