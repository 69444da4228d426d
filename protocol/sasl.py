"""The server's side of the SASL exchange (AMQP 1.0 §5.3), sans-IO: bytes of the client in, a `Step` out.

    client  AMQP 3 1 0 0                 sasl-init(mechanism, initial-response)   AMQP 0 1 0 0, open …
    server  AMQP 3 1 0 0, mechanisms                                              sasl-outcome

Proton's own server offers only ANONYMOUS and EXTERNAL; the official clients also need MSSBCBS (.NET) and
PLAIN. With every mechanism except PLAIN, the client has no rights until it puts a token (`$cbs`), so only
PLAIN is verified here.

EXTERNAL stands for a client certificate (§5.3.3). The broker asks for none and does not offer EXTERNAL: Qpid
Proton prefers it to PLAIN wherever it is offered, and then does not send its user name and password (AMQP
contract 0.4.1). The bytes after sasl-init belong to the AMQP layer and are passed on, since some clients send
their open at once. A client that skips SASL counts as anonymous. One that asks for another protocol is told
ours and refused (§2.2).

Frames have at most 512 bytes (§5.3.1), so the memory used does not grow with what a client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.codec import Array, DecodeError, Described, Symbol, UByte, ULong, decode_all, encode

SASL_HEADER, AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS")
FRAME_BYTES_MAX = 512
"""MIN-MAX-FRAME-SIZE, which no SASL frame may exceed."""

_SASL_FRAME = 1
_SASL_MECHANISMS, _SASL_INIT, _SASL_OUTCOME = 0x40, 0x41, 0x44
_OK, _AUTH = 0, 1  # sasl-code (§5.3.3.6)
_ARRAY_OF_SYMBOLS = 0xA3


@dataclass(slots=True)
class Step:
    """The result of receiving some bytes."""

    outputs: list[bytes] = field(default_factory=list)
    """To be written one by one: rhea stalls if the outcome shares a write with the AMQP header and open."""
    done: bool = False
    """The exchange is over and the client is admitted."""
    failed: bool = False
    """The exchange is over and the client is refused: write the outputs and close. `reason` is for the
    log."""
    reason: str = ""
    rest: bytes = b""
    """When `done`: bytes that belong to the AMQP layer."""


class SaslServer:
    """The exchange on one connection. Must not be used after a step is done or has failed."""

    def __init__(
        self,
        verify_plain: Callable[[str, str], bool],
        mechanisms: tuple[str, ...] = MECHANISMS,
        serves: Callable[[str], bool] = lambda host: True,
    ) -> None:
        """`verify_plain` takes the user and password of SASL PLAIN, and says whether the client is
        admitted. `serves` takes the host that the client names, "" for none, whatever its mechanism, and says
        whether the client may come to it."""
        self._verify_plain, self._serves = verify_plain, serves
        self._mechanisms = mechanisms
        self._buffer = b""
        self._header_seen = False
        self.mechanism: str | None = None
        """The mechanism that the client chose; None before that, or if it skipped SASL."""
        self.hostname = ""
        """The host that the client named in sasl-init (§5.3.3.2); known before a login is verified."""

    def receive(self, data: bytes) -> Step:
        """Take bytes from the client."""
        self._buffer += data
        step = Step()
        if not self._header_seen:
            self._read_header(step)
        if self._header_seen and not (step.done or step.failed):
            try:
                self._read_init(step)
            except DecodeError as error:
                self._fail(step, f"malformed SASL frame: {error}")
        return step

    def _read_header(self, step: Step) -> None:
        head = self._buffer[:8]
        if head == AMQP_HEADER:
            step.done, step.rest, self._buffer = True, self._buffer, b""
        elif head == SASL_HEADER:
            self._header_seen, self._buffer = True, self._buffer[8:]
            offer = Array(_ARRAY_OF_SYMBOLS, [Symbol(mechanism) for mechanism in self._mechanisms])
            step.outputs.append(SASL_HEADER + _frame(_SASL_MECHANISMS, [offer]))
        elif not (SASL_HEADER.startswith(head) or AMQP_HEADER.startswith(head)):
            step.outputs.append(SASL_HEADER)
            self._fail(step, f"unknown protocol header {head!r}")

    def _read_init(self, step: Step) -> None:
        if len(self._buffer) < 8:
            return
        size, data_offset, frame_type = (
            int.from_bytes(self._buffer[:4], "big"),
            4 * self._buffer[4],
            self._buffer[5],
        )
        if not 8 <= data_offset <= size <= FRAME_BYTES_MAX or frame_type != _SASL_FRAME:
            raise DecodeError(f"frame of {size} bytes, its body at {data_offset}, type {frame_type}")
        if len(self._buffer) < size:
            return
        init = decode_all(self._buffer[data_offset:size])
        if not isinstance(init, Described) or init.descriptor not in (_SASL_INIT, "amqp:sasl-init:list"):
            raise DecodeError("no sasl-init")
        fields = init.value if isinstance(init.value, list) else []
        mechanism, response, hostname = [*fields, None, None, None][:3]
        if not isinstance(mechanism, str) or not isinstance(response, bytes | None):
            raise DecodeError("sasl-init without a mechanism, or its initial-response is not binary")
        self.mechanism, self.hostname = str(mechanism), hostname if isinstance(hostname, str) else ""
        refusal = self._judge(self.mechanism, response or b"")
        step.outputs.append(_frame(_SASL_OUTCOME, [UByte(_AUTH if refusal else _OK)]))
        if refusal:
            self._fail(step, refusal)
        else:
            step.done, step.rest, self._buffer = True, self._buffer[size:], b""

    def _judge(self, mechanism: str, response: bytes) -> str:
        """Why the client is refused; empty if it is admitted."""
        if mechanism not in self._mechanisms:
            return f"SASL mechanism {mechanism!r:.40} is not offered"
        if not self._serves(self.hostname):
            return f"SASL: the host {self.hostname!r:.80} is not the one that the client named before"
        if mechanism != "PLAIN":
            return ""
        try:
            _, user, password = response.decode().split("\0")
        except ValueError:  # including text that is not UTF-8
            return "malformed PLAIN response"
        if self._verify_plain(user, password):
            return ""
        return f"SASL PLAIN: {user!r:.80} is not a key of the namespace, or the password is wrong"

    def _fail(self, step: Step, reason: str) -> None:
        step.failed, step.reason, self._buffer = True, reason, b""


def _frame(descriptor: int, fields: list[object]) -> bytes:
    body = encode(Described(ULong(descriptor), fields))
    return (8 + len(body)).to_bytes(4, "big") + bytes((2, _SASL_FRAME, 0, 0)) + body
