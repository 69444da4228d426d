"""What becomes of a query when messages are gone that it has not read: it fails, or goes on with what is
there (option `failOnDataLoss`)."""

from __future__ import annotations

import logging

from pyspark_partibus.errors import DataLoss
from pyspark_partibus.options import SourceOptions

_log = logging.getLogger("pyspark_partibus")


def report_loss(options: SourceOptions, cause: str) -> None:
    """Raise DataLoss, or write a warning if the user is content with what is there. cause: without a full
    stop."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{cause}. With option failOnDataLoss=false the query goes on with what is there.")
    _log.warning("%s. Going on with what is there", cause)
