"""How a batch's limit is shared among the partitions, and ranges among the tasks. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark_partibus.offsets import Range


def share_out(backlogs: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many messages of each partition a batch of at most `limit` takes.

    Each partition gets its share of the limit by backlog. One that waits gets at least one message, unless
    there are more such partitions than messages: then those with the longest backlogs get one each.
    """
    waiting = {each: backlog for each, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    longest_first = sorted(waiting, key=lambda each: (-waiting[each], each))
    if limit <= len(waiting):
        return dict.fromkeys(longest_first[:limit], 1)
    shares = {each: max(1, limit * waiting[each] // total) for each in longest_first}
    surplus = limit - sum(shares.values())
    while surplus:
        step = 1 if surplus > 0 else -1
        for each in longest_first:
            if 1 <= shares[each] + step <= waiting[each]:
                shares[each] += step
                surplus -= step
                if not surplus:
                    break
    return shares


def ranges_of_tasks(ranges: Sequence[Range], tasks_max: int, split_rows: int | None) -> list[list[Range]]:
    """Which ranges each task reads: at most `tasks_max` tasks, of about the same length.

    With `split_rows`, a longer range is cut into pieces that several tasks may read; without it, a
    partition's messages are read by one task, in their order. The same ranges and options always give the
    same tasks in the same order, because a sink's message-ids may depend on the task's number.
    """
    pieces = [piece for each in ranges for piece in _pieces(each, split_rows)]
    tasks: list[list[Range]] = [[] for _ in range(min(tasks_max, len(pieces)))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda each: (-len(each), each.partition, each.start)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(piece)
        loads[lightest] += len(piece)
    return [sorted(task, key=lambda each: (each.partition, each.start)) for task in tasks]


def _pieces(whole: Range, rows: int | None) -> list[Range]:
    if rows is None or len(whole) <= rows:
        return [whole]
    starts = range(whole.start, whole.end, rows)
    return [Range(whole.partition, start, min(start + rows, whole.end)) for start in starts]
