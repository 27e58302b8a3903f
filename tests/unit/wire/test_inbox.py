"""Messages come out as they were sent, however they were cut, and credit is neither lost nor given early."""

import asyncio

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from nstance.wire.inbox import Inbox

LIMIT = 1000


def framed(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_any_cutting_gives_the_same_messages(bodies: list[bytes], cuts: list[int]) -> None:
    credit: list[int] = []
    inbox = Inbox(credit.append)
    wire = b"".join(framed(body) for body in bodies)
    out, position, turn = [], 0, 0
    while position < len(wire):
        size = cuts[turn % len(cuts)]
        part = wire[position : position + size]
        inbox.add(part, len(part) + 1)  # one byte of padding, which counts for flow control
        position, turn = position + size, turn + 1
        while (message := inbox.message(LIMIT)) is not None:
            out.append(message)
    inbox.eof()
    assert out == bodies
    assert inbox.ended
    assert sum(credit) + inbox.unacked_size() == len(wire) + turn


def test_unread_bytes_give_no_credit() -> None:
    credit: list[int] = []
    inbox = Inbox(credit.append)
    inbox.add(framed(b"a") + framed(b"b"), 12)
    assert inbox.message(LIMIT) == b"a"
    assert credit == []
    assert inbox.message(LIMIT) == b"b"
    assert credit == [12]


async def test_a_reader_that_waits_gives_credit_so_that_large_messages_arrive() -> None:
    credit: list[int] = []
    inbox = Inbox(credit.append)
    inbox.add(framed(bytes(900))[:100], 100)
    waiting = asyncio.create_task(inbox.wait_more())
    await asyncio.sleep(0)
    assert credit == [100]
    inbox.add(b"x", 1)
    await waiting


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (b"\0\0\0\x03\xe9", Status.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", Status.RESOURCE_EXHAUSTED),
        (b"\x01\0\0\0\x01", Status.UNIMPLEMENTED),
    ],
)
def test_the_prefix_alone_is_judged(prefix: bytes, status: Status) -> None:
    inbox = Inbox(lambda size: None)
    inbox.add(prefix, 5)
    with pytest.raises(GRPCError) as caught:
        inbox.message(LIMIT)
    assert caught.value.status is status


def test_an_end_in_the_middle_is_an_error_and_not_an_end() -> None:
    inbox = Inbox(lambda size: None)
    inbox.add(framed(b"abc")[:-1], 7)
    inbox.eof()
    with pytest.raises(GRPCError):
        _ = inbox.ended


async def test_reading_by_size_as_the_client_does() -> None:
    inbox = Inbox(lambda size: None)
    reading = asyncio.create_task(inbox.read(5))
    await asyncio.sleep(0)
    inbox.add(b"abc", 3)
    await asyncio.sleep(0)
    inbox.add(b"defg", 4)
    assert await reading == b"abcde"
    assert await inbox.read(0) == b""
    assert await inbox.read(2) == b"fg"
    inbox.eof()
    assert await inbox.read(5) == b""
