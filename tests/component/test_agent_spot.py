"""Spot and preemption notices, from a metadata service over real HTTP to the server over real TLS."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.agent_server import AgentServer
from component.metadata_server import AwsMetadata, GoogleMetadata, MetadataServer
from nstance.agent import lifecycle, metadata, settings, spot
from nstance.agent.metadata import MetadataUnavailableError
from nstance.agent.settings import Address
from nstance.clock import SystemClock, SystemRng
from nstance.v1 import agent_pb2
from support.eventually import eventually

TERMINATION, REBALANCE = agent_pb2.Notice.SPOT_TERMINATION, agent_pb2.Notice.SPOT_REBALANCE
ACTION = {"action": "terminate", "time": "2026-11-15T12:00:00Z"}
ACTION_MS = 1794744000000


class QuickChance(SystemRng):
    def uniform(self, low: float, high: float) -> float:
        return min(high, low + 0.01)


class Watched(SystemClock):
    """One agent's watch without the rest of the agent; it is also the clock, whose boot time a test can move."""

    def __init__(self) -> None:
        super().__init__()
        self.forwarded: list[agent_pb2.Notice] = []
        self.ahead = 0.0
        self._task: asyncio.Task[None] | None = None

    def boot(self) -> float:
        return super().boot() + self.ahead

    def start(self, service: MetadataServer, provider: str) -> None:
        given = settings.read(
            {
                "NSTANCE_SERVER_REGISTRATION_ADDR": "127.0.0.1:1",
                "NSTANCE_SERVER_AGENT_ADDR": "127.0.0.1:1",
                "NSTANCE_INSTANCE_ID": "etc-01jw51srryegh9snf9cmeh3k4q",
                "NSTANCE_PROVIDER": provider,
                "NSTANCE_METADATA_URL": service.url,
                "NSTANCE_SPOT_POLL_INTERVAL": "100ms",
            }
        )
        self._task = asyncio.create_task(spot.watch(given, self.forwarded.append, clock=self, rng=QuickChance()))

    @property
    def ended(self) -> bool:
        assert self._task is not None
        return self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    yield made
    await made.stop()


@pytest.fixture
async def aws() -> AsyncIterator[AwsMetadata]:
    service = AwsMetadata()
    async with service.running():
        yield service


@pytest.fixture
async def google() -> AsyncIterator[GoogleMetadata]:
    service = GoogleMetadata()
    async with service.running():
        yield service


# AWS.


async def test_aws_a_hint_and_then_a_termination_are_each_forwarded_once(aws: AwsMetadata, watched: Watched) -> None:
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/rebalance") >= 2)
    assert watched.forwarded == []
    aws.rebalance = {"noticeTime": "2026-11-15T11:50:00Z"}
    await eventually(lambda: watched.forwarded)
    aws.action = ACTION
    await eventually(lambda: len(watched.forwarded) == 2)
    polls = aws.count("/instance-action")
    await eventually(lambda: aws.count("/instance-action") >= polls + 3)
    hint, termination = watched.forwarded
    assert (hint.kind, hint.deadline_unix_ms) == (REBALANCE, 0)
    assert (termination.kind, termination.deadline_unix_ms) == (TERMINATION, ACTION_MS)
    assert "terminate" in termination.detail
    assert len(aws.tokens) == 1


async def test_aws_a_deadline_that_moves_is_forwarded_again(aws: AwsMetadata, watched: Watched) -> None:
    aws.action = {"action": "stop"}
    watched.start(aws, "aws")
    await eventually(lambda: watched.forwarded)
    aws.action = ACTION
    await eventually(lambda: len(watched.forwarded) == 2)
    assert [notice.deadline_unix_ms for notice in watched.forwarded] == [0, ACTION_MS]


@pytest.mark.parametrize("life_cycle", ["on-demand", "scheduled", "capacity-block"])
async def test_aws_only_spot_machines_are_polled(aws: AwsMetadata, watched: Watched, life_cycle: str) -> None:
    aws.life_cycle, aws.action = life_cycle, ACTION
    watched.start(aws, "aws")
    await eventually(lambda: watched.ended)
    assert aws.asked == ["PUT /latest/api/token", "GET /latest/meta-data/instance-life-cycle"]
    assert watched.forwarded == []


async def test_aws_an_absent_life_cycle_is_an_error_not_an_answer(aws: AwsMetadata, watched: Watched) -> None:
    aws.life_cycle = None
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/instance-life-cycle") >= 3)
    aws.life_cycle, aws.action = "spot", ACTION
    await eventually(lambda: watched.forwarded)


async def test_aws_a_token_is_renewed_before_it_expires(aws: AwsMetadata, watched: Watched) -> None:
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/instance-action") >= 2)
    assert len(aws.tokens) == 1
    watched.ahead = spot.TOKEN_SECONDS * 0.9
    await eventually(lambda: len(aws.tokens) == 2)
    polls = aws.count("/instance-action")
    await eventually(lambda: aws.count("/instance-action") >= polls + 2)
    assert len(aws.tokens) == 2


async def test_aws_a_token_that_the_service_forgot_is_replaced_at_once(
    aws: AwsMetadata, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/rebalance"))
    aws.tokens.append("another life's")
    aws.action = ACTION
    await eventually(lambda: watched.forwarded)
    assert "failed to read the metadata" not in caplog.text


async def test_errors_are_retried_and_each_reason_is_logged_once(
    aws: AwsMetadata, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    aws.faults.extend([503] * 5 + [403] * 2)  # no token
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/rebalance"))
    aws.faults.extend([500] * 5)
    aws.action = ACTION
    await eventually(lambda: watched.forwarded)
    warned = [
        record
        for record in caplog.records
        if record.levelno == logging.WARNING and "failed to read the metadata" in record.message
    ]
    reasons = [str(vars(record)["reason"]) for record in warned]
    assert reasons[:2] == [f"PUT /latest/api/token: expected status 200, found {status}" for status in (503, 403)]
    assert reasons[2].endswith("found 500")
    assert len(set(reasons)) == len(reasons)
    assert "token-" not in caplog.text


@pytest.mark.parametrize("nonsense", ["", "terminate", "[]", '{"action": 5}', "[" * 50000, "<html>welcome</html>"])
async def test_aws_nonsense_is_neither_a_notice_nor_the_end(aws: AwsMetadata, watched: Watched, nonsense: str) -> None:
    aws.action = nonsense
    watched.start(aws, "aws")
    await eventually(lambda: aws.count("/instance-action") >= 3)
    assert watched.forwarded == []
    aws.action = ACTION
    await eventually(lambda: watched.forwarded)


# Google.


@pytest.mark.parametrize(("preemptible", "model"), [("TRUE", None), ("FALSE", "SPOT"), (None, "SPOT")])
async def test_google_a_preemption_is_forwarded_while_the_request_waits(
    google: GoogleMetadata, watched: Watched, preemptible: str | None, model: str | None
) -> None:
    google.preemptible, google.model = preemptible, model
    watched.start(google, "google")
    await eventually(lambda: google.waiting)
    assert watched.forwarded == []
    before = watched.wall()
    google.preempt()
    await eventually(lambda: watched.forwarded)
    await eventually(lambda: google.waiting)  # and goes on
    [notice] = watched.forwarded
    assert notice.kind == TERMINATION
    assert before + 30 <= notice.deadline_unix_ms / 1000 + 0.001 <= watched.wall() + 30.001


async def test_google_a_change_between_two_questions_is_seen(google: GoogleMetadata, watched: Watched) -> None:
    google.preempt_after_answer = True
    watched.start(google, "google")
    await eventually(lambda: watched.forwarded, seconds=spot.GOOGLE_WAIT_SECONDS / 2)
    assert google.count("/preempted") == 2


async def test_google_preempted_before_the_agent_began(google: GoogleMetadata, watched: Watched) -> None:
    google.preempt()
    watched.start(google, "google")
    await eventually(lambda: watched.forwarded)


@pytest.mark.parametrize(("preemptible", "model"), [("FALSE", None), ("FALSE", "STANDARD"), (None, None)])
async def test_google_only_spot_machines_are_watched(
    google: GoogleMetadata, watched: Watched, preemptible: str | None, model: str | None
) -> None:
    google.preemptible, google.model = preemptible, model
    watched.start(google, "google")
    await eventually(lambda: watched.ended)
    assert google.count("/preempted") == 0


async def test_google_after_an_error_it_asks_without_waiting(google: GoogleMetadata, watched: Watched) -> None:
    google.refuse_waiting = True
    watched.start(google, "google")
    await eventually(lambda: google.count("/preempted") >= 4)
    google.preempt()
    await eventually(lambda: watched.forwarded)


async def test_an_answer_that_is_not_googles_is_not_believed(
    google: GoogleMetadata, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as address:
        google.url = f"http://{address}"
        watched.start(google, "google")
        await eventually(lambda: watched.ended or "failed to read the metadata service" in caplog.text)
        assert not watched.ended


@pytest.mark.parametrize("provider", ["proxmox", "none"])
async def test_elsewhere_nobody_is_asked(aws: AwsMetadata, watched: Watched, provider: str) -> None:
    watched.start(aws, provider)
    await eventually(lambda: watched.ended)
    assert aws.asked == []


# The whole agent.


async def test_a_notice_goes_at_once_and_again_after_each_reconnect(aws: AwsMetadata, tmp_path: Path) -> None:
    async with AgentServer().running() as server:
        environment = server.prepare(tmp_path, server.new_instance()) | {
            "NSTANCE_PROVIDER": "aws",
            "NSTANCE_METADATA_URL": aws.url,
            "NSTANCE_SPOT_POLL_INTERVAL": "100ms",
            "NSTANCE_REPORT_INTERVAL": "0",
        }
        stop = asyncio.Event()
        agent = asyncio.create_task(
            lifecycle.run_until(
                settings.read(environment),
                stop=stop,
                going_down=asyncio.Event(),
                clock=SystemClock(),
                rng=QuickChance(),
            )
        )
        try:
            await eventually(lambda: server.last_seen.reports)
            aws.action = ACTION
            await eventually(lambda: server.last_seen.notices)
            server.cut()
            await eventually(lambda: len(server.last_seen.notices) == 2)
            assert server.last_seen.connections == 2
            assert {(each.kind, each.deadline_unix_ms) for each in server.last_seen.notices} == {
                (TERMINATION, ACTION_MS)
            }
            aws.faults.extend([500] * 20)
            await eventually(lambda: not aws.faults)
            assert not agent.done()
        finally:
            stop.set()
            await asyncio.wait_for(agent, 30)


# HTTP that is not as it should be.


@contextlib.asynccontextmanager
async def saying(answer: bytes, *, hold: bool = False) -> AsyncIterator[Address]:
    """A service that says this, whatever it is asked; `hold`: and does not hang up."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if hold:
                await done.wait()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        done.set()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE",
        b"HTTP/1.0 200\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nTR\r\n2;x=y\r\nUE\r\n0\r\n\r\n",
    ],
)
async def test_each_way_to_end_a_body_is_understood(answer: bytes) -> None:
    async with saying(answer) as address:
        last_seen = await metadata.ask("GET", address, "/x", headers={})
    assert (last_seen.status, last_seen.text()) == (200, "TRUE")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 404 Not F",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 40\r\n\r\nbroken off",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nTRUE\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 3
        + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
async def test_what_is_not_a_whole_answer_is_an_error(answer: bytes) -> None:
    async with saying(answer) as address:
        with pytest.raises(MetadataUnavailableError, match=r"gave no whole HTTP answer|cannot reach"):
            await metadata.ask("GET", address, "/x", headers={})


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTR"])
async def test_a_service_that_stops_talking_costs_a_bounded_time(answer: bytes) -> None:
    async with saying(answer, hold=True) as address:
        with pytest.raises(MetadataUnavailableError, match="in time"):
            await metadata.ask("GET", address, "/x", headers={}, timeout=0.1)


async def test_redirects_are_not_followed_and_proxies_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with saying(answer) as address:
        assert (await metadata.ask("GET", address, "/x", headers={})).status == 302


async def test_nobody_there(unused_port: int) -> None:
    with pytest.raises(MetadataUnavailableError, match="cannot reach"):
        await metadata.ask("GET", Address("127.0.0.1", unused_port), "/x", headers={})


@pytest.fixture
async def unused_port() -> int:
    async with saying(b"") as address:
        return address.port
