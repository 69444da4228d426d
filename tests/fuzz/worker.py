"""Runs fuzz cases in a process of its own: C code that goes wrong takes its process with it.

The number of the case under way stands in a file that outlives the process. A case is made from the target's
name, the seed and its number alone, so whoever finds the process dead can make it again. A case that takes
too long ends the process with SIGALRM.
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
    """The inputs that are kept for a target, in a fixed order. Streams of clients serve all targets that read
    streams."""
    if TARGETS[target].frames:
        folder = CORPUS / "streams"
    else:
        folder = CORPUS / ("values" if target in ("values", "transactional") else "messages")
    own = CORPUS / target
    files = sorted(folder.glob("*.bin")) + (sorted(own.glob("*.bin")) if own != folder else [])
    assert files, f"no corpus for {target}"
    return [path.read_bytes() for path in files]


def case(target: str, corpus: list[bytes], seed: int, number: int) -> tuple[bytes, Random]:
    """The input of one case, and the generator that its run goes on with. The first cases are the corpus as
    it is."""
    random = Random(f"{target}/{seed}/{number}")
    if number < len(corpus):
        return corpus[number], random
    return mutate(corpus, random, frames=TARGETS[target].frames), random


def run_cases(
    target: str, seed: int, first: int, count: int, seconds: float, progress: mmap.mmap
) -> dict[str, float]:
    """Run `count` cases from `first` on, or as many as `seconds` permit. An exception of a target is let
    through."""
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
        if number == first + 300:  # imports, caches and buffers have their size by now
            begin_kib = resident_kib()
        if time.monotonic() > deadline:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    grown_kib = resident_kib() - begin_kib if begin_kib else 0
    return {"cases": number + 1 - first, "next": number + 1, "grown_kib": grown_kib}


def main() -> None:
    """`python -m tests.fuzz.worker TARGET SEED FIRST COUNT SECONDS PROGRESS_FILE`: one line of JSON at the
    end."""
    target, seed, first, count, seconds, path = sys.argv[1:]
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as progress:
        print(json.dumps(run_cases(target, int(seed), int(first), int(count), float(seconds), progress)))


if __name__ == "__main__":
    main()
