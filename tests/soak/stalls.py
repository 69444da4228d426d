"""How long another client waits for an answer that needs only the broker's event loop, without delays added
by the machine.

Responsible for the meter, which is a separate process because the clients of the load share an interpreter
and would delay it. It begins and ends a session again and again (§2.5). From each wait it subtracts the time
for which the event loop's thread or the meter was ready while others had the processors, and the time the
host took from them. The rest is the loop's own work and what it waits for. `python -m tests.soak.stalls
AMQP_PORT THREAD` measures until the broker or its standard input ends, and then prints the waits in ms as
JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time

from tests.support import raw_amqp as raw
from tests.support.broker_process import REPOSITORY
from tests.support.processors import elsewhere_ms
from tests.support.raw_amqp import ConnectionEnded, RawConnection

EVERY_S = 0.02
ENDS_WITHIN_S = 30.0


class StallMeter:
    """The meter's process for one life of the broker. It ends with the broker, or when told to."""

    def __init__(self, port: int, thread: int) -> None:
        """Start measuring. thread: the system's number of the event loop's thread, which in a broker's
        process is the process's number.

        Raises AssertionError if the broker does not let the meter in.
        """
        command = [sys.executable, "-m", __name__, str(port), str(thread)]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.end()

    def end(self) -> list[float]:
        """Stop measuring; gives the waits in ms. Raises AssertionError if the meter failed."""
        try:
            output, _ = self._process.communicate(timeout=ENDS_WITHIN_S)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, "the stall meter failed"
        waits: list[float] = json.loads(output)
        return waits


def main(port: int, thread: int) -> None:
    """Measure. Raises TimeoutError if the broker does not answer."""
    took_ms: list[float] = []
    question = raw.frame(raw.BEGIN, raw.begin_fields(), channel=1) + raw.frame(raw.END, [], channel=1)
    with RawConnection(port) as connection:
        connection.open()
        connection.begin()
        print("measuring", flush=True)
        try:
            while not select.select([sys.stdin], [], [], EVERY_S)[0]:
                began, before = time.perf_counter(), elsewhere_ms(thread, os.getpid())
                connection.send(question)
                connection.read_until(raw.END)
                wait_ms = (time.perf_counter() - began) * 1e3
                took_ms.append(max(0.0, wait_ms - (elsewhere_ms(thread, os.getpid()) - before)))
        except TimeoutError:
            raise
        except (ConnectionEnded, OSError):
            pass  # the broker is gone, which ends the measurement
    print(json.dumps(took_ms))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
