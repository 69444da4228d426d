"""Qpid Proton's reactor: the container runs the loop, and all requests and results go through callbacks.

A `Script` is the container's handler and runs one scenario, a coroutine, which awaits conditions; the
callback that makes a condition true resumes it. There is one thread, and only the container's own wait for
its sockets blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

from proton import Message, Terminus
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.interop import proton_client
from tests.interop.proton_client import PLAIN, Encoded, Ends, Outcome, Received, Refused, outcome_of, settled
from tests.support.broker_process import Addresses

WITHIN_S = 25
"""Time limit for a whole scenario."""
CLOSES_WITHIN_S = 5

# Events are `Any` below: Proton types each part of them as possibly missing.


class Until:
    """Awaited by a scenario until `condition` holds; `what` describes it in the error if it never does."""

    def __init__(self, condition: Callable[[], object], what: str) -> None:
        self.condition, self.what = condition, what

    def __await__(self) -> Generator[Until, None, None]:
        if not self.condition():
            yield self


class Script(MessagingHandler):
    """Runs a scenario on its own container."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__()
        self._addresses = addresses
        self._scenario: Coroutine[Until, None, None]
        self._awaited: Until | None = None
        self._ended = self._is_late = False
        self._failure: BaseException | None = None
        self.container: Any = None

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario to its end, for at most `WITHIN_S`. Raises whatever it raised."""
        self._scenario = scenario
        Container(self).run()
        if self._failure is not None:
            raise self._failure
        assert self._ended

    @asynccontextmanager
    async def connect(
        self, *, port: int | None = None, **options: Any
    ) -> AsyncIterator[proton_client.Client]:
        """A connection with SASL PLAIN, closed at the end."""
        client = ReactorClient(self)
        url = f"amqp://127.0.0.1:{port or self._addresses.amqp_port}"
        client.connection = self.container.connect(
            url, reconnect=False, handler=client, **{**PLAIN, **options}
        )
        try:
            await Until(lambda: client.is_open or client.failure, "the connection")
            if client.failure:
                raise Refused(client.failure)
            yield client
        finally:
            client.connection.close()
            await Until(lambda: client.is_closed, "the connection to close")

    def go_on(self) -> None:
        """Resume the scenario if it can proceed; every callback calls this."""
        while not self._ended and (self._awaited is None or self._awaited.condition()):
            self._step(self._scenario.send, None)

    def on_start(self, event: Any) -> None:
        self.container = event.container
        event.container.schedule(WITHIN_S, self)
        self.go_on()

    def on_timer_task(self, event: Any) -> None:
        what = f"waited for {self._awaited and self._awaited.what}"
        if self._is_late:
            self._end(TimeoutError(f"{what}, {CLOSES_WITHIN_S} s after it had failed"))
            self._scenario.close()
            return
        self._is_late = True
        event.container.schedule(CLOSES_WITHIN_S, self)
        self._step(self._scenario.throw, TimeoutError(f"{what} until {WITHIN_S} s had passed"))
        self.go_on()

    def _step(self, resume: Callable[[Any], Until], value: Any) -> None:
        try:
            self._awaited = resume(value)
        except StopIteration:
            self._end(None)
        except BaseException as failure:
            self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Let the container finish what is under way, including closing sockets, and return; its timer would
        otherwise keep it sleeping.
        """
        self._ended, self._failure = True, failure
        self.container.stop()


class ReactorClient(MessagingHandler):
    """A connection with the interface of `proton_client.Client`, and the handler of its events."""

    def __init__(self, script: Script) -> None:
        super().__init__(prefetch=0)
        self.script = script
        self.connection: Any = None
        self.failure = ""
        self.is_open = self.is_closed = False

    async def sender(self, address: str) -> proton_client.Sender:
        sender = ReactorSender(self)
        sender.link = self.script.container.create_sender(self.connection, address, handler=sender)
        await sender.attached(lambda: sender.link.remote_target)
        return sender

    async def receiver(self, address: str, *, name: str | None = None, **ends: Any) -> proton_client.Receiver:
        receiver = ReactorReceiver(self)
        receiver.link = self.script.container.create_receiver(
            self.connection, address, name=name, handler=receiver, options=Ends(**ends)
        )
        await receiver.attached(lambda: receiver.link.remote_source)
        return receiver

    async def pause(self, seconds: float) -> None:
        pause = Pause(self.script)
        self.script.container.schedule(seconds, pause)
        await self.until(lambda: pause.is_over, f"{seconds} s to pass")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for the condition. Raises Refused if the connection ends first."""
        await Until(lambda: self.failure or condition(), what)
        if self.failure:
            raise Refused(self.failure)

    def on_connection_opened(self, event: Any) -> None:
        self.is_open = True
        self.script.go_on()

    def on_connection_error(self, event: Any) -> None:
        self._fail(f"connection: {event.connection.remote_condition}")

    def on_session_error(self, event: Any) -> None:
        self._fail(f"session: {event.session.remote_condition}")

    def on_transport_error(self, event: Any) -> None:
        self._fail(f"transport: {event.transport.condition}")

    def on_transport_closed(self, event: Any) -> None:
        self.is_closed = True
        self._fail("the connection has ended")

    def _fail(self, failure: str) -> None:
        self.failure = self.failure or failure
        self.script.go_on()


class Pause(MessagingHandler):
    """Over when its timer fires."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self.is_over = False

    def on_timer_task(self, event: Any) -> None:
        self.is_over = True
        self._script.go_on()


class ReactorLink(MessagingHandler):
    """Base of both kinds of links. Every callback records what the link itself does not show, and resumes the
    scenario.
    """

    def __init__(self, client: ReactorClient) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self._client = client
        self._failure = ""
        self._is_open = self._is_closed = False
        self.link: Any = None

    async def attached(self, terminus: Callable[[], Any]) -> None:
        """Wait until the broker has attached. To refuse, the broker first attaches without a terminus, then
        detaches with an error.
        """
        await self.until(
            lambda: self._is_open and terminus().type != Terminus.UNSPECIFIED, f"the link to {self.link.name}"
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for the condition. Raises Refused if the link ends first."""
        await self._client.until(lambda: self._failure or condition(), what)
        if self._failure:
            raise Refused(self._failure)

    async def close(self) -> None:
        self.link.close()
        await self._client.until(lambda: self._is_closed, "the broker's detach")

    def on_link_opened(self, event: Any) -> None:
        self._is_open = True
        self._client.script.go_on()

    def on_link_error(self, event: Any) -> None:
        self._failure = str(event.link.remote_condition)
        self._client.script.go_on()

    def on_link_closing(self, event: Any) -> None:
        self._failure = "the broker closed the link"
        self._client.script.go_on()

    def on_link_closed(self, event: Any) -> None:
        self._is_closed = True
        self._client.script.go_on()

    def on_settled(self, event: Any) -> None:
        self._client.script.go_on()


class ReactorSender(ReactorLink):
    @property
    def max_message_size(self) -> int:
        return int(self.link.remote_max_message_size)

    async def send(self, message: Message | Encoded) -> Outcome:
        await self.until(lambda: self.link.credit > 0, "credit")
        delivery = self.link.send(message)
        await self.until(lambda: delivery.settled, "the outcome of a message")
        outcome = outcome_of(delivery)
        delivery.settle()
        return outcome

    def on_sendable(self, event: Any) -> None:
        self._client.script.go_on()


class ReactorReceiver(ReactorLink):
    def __init__(self, client: ReactorClient) -> None:
        super().__init__(client)
        self._found: deque[Received] = deque()

    async def receive(self, count: int = 1) -> list[Received]:
        self.link.flow(count)
        await self.until(lambda: len(self._found) >= count, f"{count} messages")
        return [self._found.popleft() for _ in range(count)]

    async def drain(self, credit: int) -> list[Received]:
        self.link.drain(credit)
        # The answer may have been read while earlier messages still wait for their callbacks.
        await self.until(lambda: not self.link.draining() and self.link.queued == 0, "the drain's answer")
        self.link.drain_mode = False
        self.link.drained()
        found = list(self._found)
        self._found.clear()
        return found

    async def propose(self, received: Received, outcome: int) -> int:
        received.delivery.update(outcome)
        await self.until(lambda: received.delivery.settled, "the broker's settlement")
        return settled(received.delivery)

    def on_message(self, event: Any) -> None:
        self._found.append(Received(event.message, event.delivery))
        self._client.script.go_on()

    def on_link_flow(self, event: Any) -> None:
        self._client.script.go_on()
