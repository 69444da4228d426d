"""Partibus as a data source of Spark: `spark.read.format("partibus")`, and the same for streams and for
writing.

Spark imports every installed package named `pyspark_*` to look for data sources, and one that fails takes
all others with it. So this module imports nothing until somebody asks for the data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_partibus.source import PartibusDataSource

    DefaultSource = PartibusDataSource

__all__ = ["DefaultSource", "PartibusDataSource"]


def __getattr__(name: str) -> Any:
    """Load the data source when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_partibus.source import PartibusDataSource
    except ImportError as error:  # Spark asks with hasattr(), and must find other data sources all the same
        raise AttributeError(f"the Partibus data source cannot be loaded: {error}") from error
    return PartibusDataSource
