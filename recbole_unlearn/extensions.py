"""Finding what registers itself: all modules of one of our packages, and entry points of other people's."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from importlib import metadata

logger = logging.getLogger(__name__)


def discover(package: str, group: str | None = None) -> dict[str, str]:
    """Import every module below ``package`` and every entry point of ``group``; returns why an entry point failed."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
    broken = {}
    for point in metadata.entry_points(group=group) if group else ():
        try:
            point.load()
        except Exception as error:  # a fault of another package must not stop ours
            broken[point.name] = f"{type(error).__name__}: {error}"
            logger.warning("%s of another package cannot be used: %s", point.name, broken[point.name])
    return broken
