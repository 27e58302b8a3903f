"""Health while a server waits for its storage, and where it is answered afterwards."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from component.whole_server import SECONDS, SHARD, World
from nstance.config.addresses import Address, Service
from nstance.objects.errors import PermissionDeniedError, StorageError, UnavailableError
from nstance.objects.memory import Fate, Verb
from nstance.objects.port import MAX_READ
from nstance.server import reserved_ports, wiring
from nstance.server.errors import FatalError
from nstance.server.waits import Waits
from nstance.tasks.backoff import Backoff
from support import ports
from support.eventually import eventually

free_port = ports.free_port


def away_at_first(times: int) -> Callable[[Verb, str], Fate]:
    left = [Fate(error=UnavailableError("503"))] * times
    return lambda verb, key: left.pop() if left else Fate()


async def health_text(port: int) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/health") as answer:
        return answer.status, await answer.text()


async def health(port: int) -> int | None:
    """The status, or None if nobody listens."""
    try:
        return (await health_text(port))[0]
    except aiohttp.ClientConnectorError:
        return None


@pytest.fixture
def meanwhile(free_port: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Takes the place of the default port."""
    monkeypatch.setattr(wiring, "HEALTH", Address("127.0.0.1", free_port))
    return free_port


async def test_health_moves_to_the_configured_port(tmp_path: Path, meanwhile: int) -> None:
    """Found by chaos: a server that had to wait for its storage answered on the default port for the rest of its life."""
    async with World(tmp_path) as world:
        world.fate = away_at_first(1)
        server = await world.start("a")
        assert await health(server.base) == 200
        assert await health(meanwhile) is None


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        pytest.param(UnavailableError("503"), "object storage does not answer: 503", id="away"),
        pytest.param(PermissionDeniedError("403"), "object storage denies access: 403", id="denied"),
    ],
)
async def test_a_store_that_cannot_be_written_is_reported_until_it_can(
    tmp_path: Path,
    problem: StorageError,
    expected: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reading succeeded, so a server that could not write waited without a word."""
    async with World(tmp_path) as world:
        world.waits = Waits(boot_retry=Backoff(0.05, 0.05))
        world.fate = lambda verb, key: Fate(error=problem) if "/probe-" in key else Fate()
        starting = asyncio.create_task(world.start("a"))
        message = f"failed to check the store, will retry: {expected}"
        await eventually(lambda: message in [record.getMessage() for record in caplog.records])
        world.fate = lambda verb, key: Fate()
        server = await starting
        assert await health(server.base) == 200


async def test_a_default_port_that_is_taken_keeps_nobody_from_starting(tmp_path: Path, meanwhile: int) -> None:
    with socket.create_server(("127.0.0.1", meanwhile)):
        async with World(tmp_path) as world:
            world.fate = away_at_first(1)
            server = await world.start("a")
            assert await health(server.base) == 200


@pytest.mark.parametrize("planted", [pytest.param(b"{}", id="unreadable"), pytest.param(None, id="missing")])
async def test_health_says_that_the_journal_is_damaged_and_nobody_can_lead(
    tmp_path: Path, planted: bytes | None
) -> None:
    """It was 200 on all servers while none of them could lead."""
    async with World(tmp_path) as world:
        await (await world.start("a")).stop()
        slot = f"shard/{SHARD}/journal/{1:020d}.json"
        whole = world.store.contents()[slot]
        world.store.tamper(slot, planted)
        starting = asyncio.create_task(world.start("b"))
        await eventually(lambda: "b" in world.servers)
        port = world.servers["b"].base
        text = await unhealthy_text(port)
        assert "slot" in text.partition("nobody can lead: ")[2]
        world.store.tamper(slot, whole)
        await starting
        assert await health(port) == 200


@pytest.mark.parametrize("problem", [UnavailableError("503"), PermissionDeniedError("403")], ids=["away", "denied"])
async def test_a_server_says_that_it_waits_for_storage_to_lead_again(
    tmp_path: Path, problem: StorageError, caplog: pytest.LogCaptureFixture
) -> None:
    """It said "ok", and its log ended with the lost lease. It stays healthy: a new server would have to wait as well."""
    caplog.set_level("INFO")
    async with World(tmp_path) as world:
        server = await world.start("a")
        world.fate = lambda verb, key: Fate(error=problem)
        expected = (200, f"nobody leads: failed to read the lease: {problem}")

        async def is_reported() -> bool:
            return await health_text(server.base) == expected

        await eventually(is_reported)
        world.fate = lambda verb, key: Fate()
        await server.until(lambda: server.lead is not None)
        assert await health_text(server.base) == (200, "ok")
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert lines.count("failed to read the lease, will retry") == 1


async def unhealthy_text(port: int) -> str:
    """What /health says when it says that nobody can lead."""

    async def ask() -> str:
        with contextlib.suppress(aiohttp.ClientConnectorError):
            status, text = await health_text(port)
            if status == 503 and "nobody can lead: " in text:
                return text
        return ""

    return await eventually(ask)


async def test_a_damaged_journal_does_not_make_the_epoch_grow(tmp_path: Path) -> None:
    """A server claimed the lease again and again although it could not lead."""
    async with World(tmp_path) as world:
        world.waits = Waits(abstain=0.05)
        await (await world.start("a")).stop()
        slot, key = f"shard/{SHARD}/journal/{1:020d}.json", f"shard/{SHARD}/leader.json"
        whole = world.store.contents()[slot]
        world.store.tamper(slot, b"{}")
        reads = 0

        def count(verb: Verb, key: str) -> Fate:
            nonlocal reads
            reads += key == slot
            return Fate()

        world.fate = count
        starting = asyncio.create_task(world.start("b"))
        await eventually(lambda: "b" in world.servers)
        await unhealthy_text(world.servers["b"].base)
        epoch = json.loads(world.store.contents()[key])["epoch"]
        before = reads
        await eventually(lambda: reads > before + 5)
        assert json.loads(world.store.contents()[key])["epoch"] == epoch
        world.store.tamper(slot, whole)
        await starting


@pytest.mark.parametrize(
    "planted", [pytest.param(b"{}", id="damaged"), pytest.param(bytes(MAX_READ + 1), id="oversized")]
)
async def test_a_lease_that_cannot_be_read_ends_no_server(tmp_path: Path, planted: bytes) -> None:
    """The leader and its standby exited, and were gone when somebody repaired it."""
    async with World(tmp_path) as world:
        world.waits = Waits(abstain=0.05)
        leader = await world.start("a")
        standby = await world.start("b", lead=False)
        key = f"shard/{SHARD}/leader.json"
        whole = world.store.contents()[key]
        world.store.tamper(key, planted)
        held = leader.configured.elector._held
        assert held is not None
        held._renew_now.set()
        for server in (leader, standby):
            assert "the lease object cannot be read" in await unhealthy_text(server.base)
            assert not server.task.done()
        world.store.tamper(key, whole)
        await eventually(lambda: any(server.lead is not None for server in (leader, standby)))

        async def both_are_healthy() -> bool:  # the standby reads the lease a moment later
            return await health(leader.base) == await health(standby.base) == 200

        await eventually(both_are_healthy)


async def test_a_standby_that_finds_the_journal_damaged_is_well_while_somebody_leads(tmp_path: Path) -> None:
    """A restart would not help, and it stands by again as soon as the journal is repaired."""
    async with World(tmp_path) as world:
        await world.start("a")
        standby = await world.start("b", lead=False)
        standby.follower.damage = "slot 7 is damaged"
        assert await health(standby.base) == 200


@contextlib.contextmanager
def outgoing_from(port: int) -> Iterator[None]:
    """Somebody's outgoing connection, to which the system has given this port."""
    with socket.create_server(("127.0.0.1", 0)) as far, socket.socket() as near:
        near.bind(("127.0.0.1", port))
        near.connect(far.getsockname())
        yield


def is_unused(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@pytest.mark.parametrize("service", [Service.REGISTRATION, Service.OPERATOR, Service.AGENT])
async def test_a_port_that_is_taken_is_reported_at_start(tmp_path: Path, service: Service) -> None:
    """Such a server won the lease again and again, could not lead, and said that it was well: nobody led."""
    async with World(tmp_path) as world:
        port = world._base + list(Service).index(service)
        await eventually(
            lambda: is_unused(port), seconds=90
        )  # an earlier server's closed connections keep it for a minute
        with outgoing_from(port):
            starting = asyncio.create_task(world.start("a"))
            await eventually(lambda: "a" in world.servers)
            with pytest.raises(FatalError, match=f"the {service.value} port .* cannot be opened: "):
                await asyncio.wait_for(world.servers["a"].task, SECONDS)
            starting.cancel()


async def test_a_standby_keeps_the_ports_that_it_will_need(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        first = await world.start("a")
        standby = await world.start("b", lead=False)
        for service in (Service.REGISTRATION, Service.OPERATOR, Service.AGENT):
            port = standby.base + list(Service).index(service)
            with pytest.raises(OSError, match="in use"), outgoing_from(port):
                raise AssertionError("the port was given away")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        await first.stop()
        await standby.until(lambda: standby.lead is not None)


@pytest.mark.parametrize(("low", "hinted"), [(1024, True), (60_000, False)])
def test_a_port_for_outgoing_connections_is_no_good_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, low: int, hinted: bool
) -> None:
    port_range = tmp_path / "range"
    port_range.write_text(f"{low}\t60999\n")
    monkeypatch.setattr(reserved_ports, "EPHEMERAL_PORT_RANGE", port_range)
    message = reserved_ports.taken(Service.AGENT, Address("127.0.0.1", 8994), OSError(98, "Address already in use"))
    assert message.startswith("the agent port 127.0.0.1:8994 cannot be opened: Address already in use")
    assert ("outgoing connections" in message) is hinted


async def test_a_cold_start_waits_for_storage_only_a_few_times(tmp_path: Path) -> None:
    """With 2 s a request, 15 requests one after the other are 30 s without a leader."""
    async with World(tmp_path) as world:
        waiting: list[asyncio.Future[None]] = []
        rounds = 0

        async def hold(verb: Verb, key: str) -> Fate:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]
            return Fate()

        world._fated = hold  # type: ignore[method-assign]
        starting = asyncio.create_task(world.start("a"))
        async with asyncio.timeout(SECONDS):
            while not starting.done():
                await asyncio.sleep(0.05)  # until everything waits for storage that does not wait for something else
                held, waiting[:] = list(waiting), []
                rounds += bool(held)
                for each in held:
                    if not each.done():
                        each.set_result(None)
        await starting
        assert rounds <= 13
