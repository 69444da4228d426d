"""`make fuzz`: feed mutated inputs to everything that reads a client's bytes, until the time is up or
something breaks.

    python -m tests.fuzz.run [--seconds 60] [--target engine …] [--seed N] [--case N] [--sanitize]

Home-made and seeded rather than coverage-guided: the part most worth breaking is proton's C core, whose wheel
is not instrumented, and mutated frames and fields reach deeper into it than mutated bytes. A failure prints
the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import sanitized
from tests.fuzz.targets import TARGETS, describe
from tests.fuzz.worker import CASE_TIMEOUT_S, PROGRESS, case, corpus_of

REPOSITORY = Path(__file__).resolve().parents[2]
GROWTH_KIB_MAX = 48 * 1024
"""A worker's memory may grow by this much over all its cases. Each leaked engine costs tens of KiB."""
CASES_UNBOUNDED = 2**40


class FuzzFailure(Exception):
    """A case broke something. The text says which case, how it failed, and how to repeat it."""


@dataclass(slots=True, frozen=True)
class Outcome:
    """The figures of a run without a failure."""

    cases: int
    grown_kib: int


def fuzz(
    target: str,
    seed: int,
    *,
    first: int = 0,
    count: int = CASES_UNBOUNDED,
    seconds: float = 3_600.0,
    native: Path | None = None,
) -> Outcome:
    """Run cases of one target in a process of their own. Raises FuzzFailure.

    `native`: a folder of C modules built by `sanitized.build`, used instead of the installed ones.
    """
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(PROGRESS.size))
        progress.flush()
        command = [
            sys.executable,
            "-m",
            *(["tests.fuzz.sanitized", str(native)] if native else ["tests.fuzz.worker"]),
            target,
            *(str(each) for each in (seed, first, count, seconds)),
            progress.name,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=seconds + 3 * CASE_TIMEOUT_S,
                env=sanitized.environment() if native else os.environ.copy(),
            )
        except subprocess.TimeoutExpired as error:
            raise FuzzFailure(f"{target}: the worker did not end: {error.stderr!r:.2000}") from error
        progress.seek(0)
        number = PROGRESS.unpack(progress.read(PROGRESS.size))[0]
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else "an exception"
        data, _ = case(target, corpus_of(target), seed, number)
        raise FuzzFailure(
            f"{target}: case {number} ended with {how}:\n{done.stderr[-4_000:]}\ninput: {describe(data)}\n"
            f"repeat: python -m tests.fuzz.run --target {target} --seed {seed} --case {number}"
        )
    result = json.loads(done.stdout)
    if result["grown_kib"] > GROWTH_KIB_MAX:
        raise FuzzFailure(
            f"{target}: {result['cases']} cases from {first} on, seed {seed}, left "
            f"{result['grown_kib']} KiB behind"
        )
    return Outcome(result["cases"], result["grown_kib"])


def main() -> int:
    """Run the command line. Exit status 1 if anything broke."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.run", description="Fuzz what reads a client's bytes."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, over all targets (default 60)")
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="only these (default: all)"
    )
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new seed)")
    parser.add_argument("--case", type=int, default=None, help="run this one case only")
    parser.add_argument(
        "--sanitize", action="store_true", help="with the C modules built for sanitizers (needs gcc)"
    )
    options = parser.parse_args()
    if not options.sanitize:
        return run(options, None)
    with tempfile.TemporaryDirectory() as folder:
        sanitized.build(REPOSITORY, Path(folder))
        return run(options, Path(folder))


def run(options: argparse.Namespace, native: Path | None) -> int:
    """Fuzz what the options ask for. Exit status 1 if anything broke."""
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    targets = options.target or list(TARGETS)
    failures = 0
    for target in targets:
        try:
            if options.case is not None:
                outcome = fuzz(target, seed, first=options.case, count=1, native=native)
            else:
                outcome = fuzz(target, seed, seconds=options.seconds / len(targets), native=native)
        except FuzzFailure as failure:
            failures += 1
            print(failure, file=sys.stderr)
        else:
            print(
                f"{target}: {outcome.cases} cases, seed {seed}, memory {outcome.grown_kib:+} KiB", flush=True
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
