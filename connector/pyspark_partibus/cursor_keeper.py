"""Keeps the broker's cursor, and perhaps its queue, up with what a query has committed."""

from __future__ import annotations

import logging

from pyspark_partibus.client.operations import CURSOR_NOT_FOUND, CURSOR_OWNED, Node
from pyspark_partibus.errors import OptionError, Refused, Unavailable
from pyspark_partibus.offsets import Offset, Positions
from pyspark_partibus.options import SourceOptions

_log = logging.getLogger("pyspark_partibus")


class CursorKeeper:
    """Settles for one query. The cursor is made with the first batch that is settled, so that a query that
    fails before owns nothing."""

    def __init__(self, node: Node, options: SourceOptions) -> None:
        self._node, self._options = node, options
        self._settled: Positions | None = None

    def check_before_first_batch(self) -> None:
        """Refuse to begin a query whose cursor belongs to another one. Raises OptionError."""
        options = self._options
        if options.settle == "none" or options.cursor is None or options.cursor_takeover:
            return
        if self._node.cursor(options.cursor) is not None:
            raise _owned(options)

    def settle(self, offset: Offset) -> None:
        """Note that everything before this offset is done with. Raises OptionError if the cursor is another
        query's."""
        if self._options.settle == "none" or offset.positions == self._settled:
            return
        try:
            self._settle(offset)
        except Unavailable as error:
            _log.warning("settling is put off: %s", error)
        except Refused as refused:
            raise (_owned(self._options) if refused.condition == CURSOR_OWNED else refused) from refused
        else:
            self._settled = offset.positions

    def _settle(self, offset: Offset) -> None:
        options, node = self._options, self._node
        complete = options.settle == "complete"
        if options.cursor is None:
            node.settle_through(offset.positions)
            return
        if self._settled is None and options.cursor_takeover:
            node.create_cursor(options.cursor, offset.owner, offset.positions, take_over=True)
        try:
            node.advance_cursor(options.cursor, offset.owner, offset.positions, complete)
        except Refused as refused:
            if refused.condition != CURSOR_NOT_FOUND:
                raise
            node.create_cursor(options.cursor, offset.owner, offset.positions, take_over=False)
            node.advance_cursor(options.cursor, offset.owner, offset.positions, complete)


def _owned(options: SourceOptions) -> OptionError:
    return OptionError(
        "cursor",
        f"'{options.cursor}' of '{options.address}' belongs to another query, or to a checkpoint that was "
        "deleted; use another "
        "name, delete the cursor, or take it over with option cursorTakeover=true",
    )
