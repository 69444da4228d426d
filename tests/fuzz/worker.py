"""Run fuzz cases in a process of their own, because C code that fails takes its process with it.

A file that outlives the process holds the number of the current case. The target's name, the seed and that
number determine the case, so it can be rebuilt after the process dies. SIGALRM ends the process if a case
takes too long.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import signal
import struct
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS, describe
from tests.support.memory_use import resident_kib

CORPUS = Path(__file__).parent / "corpus"
CASE_TIMEOUT_S = 10.0
PROGRESS = struct.Struct("<Q")


def corpus_of(target: str) -> list[bytes]:
    """The stored inputs of a target, in a fixed order. All targets that read streams share the client
    streams."""
    if TARGETS[target].frames:
        folder = CORPUS / "streams"
    else:
        folder = CORPUS / ("values" if target in ("values", "transactional", "properties") else "messages")
    own = CORPUS / target
    files = sorted(folder.glob("*.bin")) + (sorted(own.glob("*.bin")) if own != folder else [])
    assert files, f"no corpus for {target}"
    return [path.read_bytes() for path in files]


def case(target: str, corpus: list[bytes], seed: int, number: int) -> tuple[bytes, Random]:
    """The input of one case, and the random generator for its run. The first cases are the unchanged
    corpus."""
    random = Random(f"{target}/{seed}/{number}")
    if number < len(corpus):
        return corpus[number], random
    return mutate(corpus, random, frames=TARGETS[target].frames), random


def run_cases(
    target: str, seed: int, first: int, count: int, seconds: float, progress: mmap.mmap
) -> dict[str, float]:
    """Run `count` cases from `first` on, or as many as fit into `seconds`. Exceptions of a target
    propagate."""
    corpus, run = corpus_of(target), TARGETS[target].run
    deadline, begin_kib, number = time.monotonic() + seconds, 0, first
    for number in range(first, first + count):
        PROGRESS.pack_into(progress, 0, number)
        data, random = case(target, corpus, seed, number)
        signal.setitimer(signal.ITIMER_REAL, CASE_TIMEOUT_S)
        try:
            run(data, random)
        except BaseException:
            print(f"the input: {describe(data)}", file=sys.stderr)
            raise
        if number == first + 300:  # imports, caches and buffers are warm by now
            begin_kib = resident_kib()
        if time.monotonic() > deadline:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    grown_kib = resident_kib() - begin_kib if begin_kib else 0
    return {"cases": number + 1 - first, "next": number + 1, "grown_kib": grown_kib}


def main() -> None:
    """`python -m tests.fuzz.worker TARGET SEED FIRST COUNT SECONDS PROGRESS_FILE`: print one line of JSON at
    the end."""
    target, seed, first, count, seconds, path = sys.argv[1:]
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as progress:
        print(json.dumps(run_cases(target, int(seed), int(first), int(count), float(seconds), progress)))


if __name__ == "__main__":
    main()
