from hypothesis import given, settings
from hypothesis import strategies as st

from protocol._runs import lib
from protocol.codec import Described, UInt, ULong, encode
from protocol.frames import BatchFrameFinder
from protocol.sasl import SaslServer
from tests.support import plain_frames

FORMAT_BYTES = b"\x80\x01\x37\x00"


def frame(body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def transfer(is_batch: bool, tag: bytes, payload: bytes) -> bytes:
    return frame(
        encode(Described(ULong(0x14), [UInt(0), UInt(1), tag, UInt(0x80013700 if is_batch else 0)])) + payload
    )


misleading = [
    FORMAT_BYTES,
    b"\x70" + FORMAT_BYTES,
    b"\x00\x53\x14\xc0",
    b"\x00\x00\x00\x20\x02\x00\x00\x00",
    b"AMQP",
]
adversarial = st.lists(st.sampled_from(misleading) | st.binary(max_size=9), max_size=8).map(b"".join)
frames = st.tuples(st.booleans(), adversarial.map(lambda tag: tag[:32]), adversarial)


@given(st.lists(frames, max_size=8), st.data())
@settings(max_examples=300, deadline=None)
def test_exactly_the_batch_transfers_end_pieces_of_their_own(
    described: list[tuple[bool, bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"AMQP\x00\x01\x00\x00" + b"".join(transfer(*one) for one in described)
    ends, position = {}, 8
    for one in described:
        position += len(transfer(*one))
        ends[position] = one[0]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    finder, reached, seen = BatchFrameFinder(), 0, b""
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for piece, is_batch in finder.pieces(stream[begin:end]):
            seen += piece
            completed = [ends[at] for at in range(reached + 1, reached + len(piece) + 1) if at in ends]
            assert completed == [True] if is_batch else not any(completed)
            reached += len(piece)
    assert seen == stream


@given(st.lists(frames, max_size=8), adversarial, st.sampled_from([8, 40, 2_048]))
@settings(max_examples=60, deadline=None)
def test_the_frames_passed_over_in_c_are_those_that_need_no_look(
    described: list[tuple[bool, bytes, bytes]], rest: bytes, small: int
) -> None:
    stream = b"".join(transfer(*one) for one in described) + rest
    assert lib.frames_pass(stream, 0, len(stream), small) == plain_frames.passed(stream, 0, small)


@given(st.lists(st.binary(max_size=60), max_size=8))
@settings(max_examples=300, deadline=None)
def test_any_bytes_pass_the_finder_unchanged(chunks: list[bytes]) -> None:
    finder = BatchFrameFinder()
    assert b"".join(piece for chunk in chunks for piece, _ in finder.pieces(chunk)) == b"".join(chunks)


@given(st.binary(max_size=100), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_end_a_sasl_exchange_or_wait_for_more(garbage: bytes, greet: bool) -> None:
    sasl = SaslServer(lambda user, password: False)
    step = sasl.receive((b"AMQP\x03\x01\x00\x00" if greet else b"") + garbage)
    assert not (step.done and step.failed)
