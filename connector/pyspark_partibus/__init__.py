"""Partibus as a data source of Spark: `spark.read.format("partibus")`, and the same for streams and for
writing.

Spark imports every installed package named `pyspark_*` to look for data sources, and one that fails takes
all others with it. So this module imports nothing until somebody asks for the data source.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_partibus.source import PartibusDataSource

    DefaultSource = PartibusDataSource

__all__ = ["DefaultSource", "PartibusDataSource"]
SPARK_MIN = (4, 2)
"""The first version of Spark whose Python sources can limit the batches of a stream."""


def __getattr__(name: str) -> Any:
    """Load the data source when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_partibus.source import PartibusDataSource
    except ImportError as error:
        problem = f"the Partibus data source cannot be loaded{_needs()}: {error}"
        if name == "PartibusDataSource":  # somebody imports it, and wants to know
            raise ImportError(problem) from error
        # Spark asks with hasattr(), and must find other data sources all the same.
        logging.getLogger(__name__).warning(problem)
        raise AttributeError(problem) from error
    return PartibusDataSource


def _needs() -> str:
    """What to say of a version of Spark that is too old."""
    try:
        from pyspark import __version__ as installed
    except ImportError:
        return ""
    major, minor = installed.split(".")[:2]
    old = (int(major), int(minor)) < SPARK_MIN
    return f" (it needs pyspark {'.'.join(map(str, SPARK_MIN))} or newer, not {installed})" if old else ""
