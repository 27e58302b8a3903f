"""Health while a server waits for its storage, and where it is answered afterwards."""

import socket
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from component.whole_server import World
from nstance.config.addresses import Address
from nstance.objects.errors import Unavailable
from nstance.objects.memory import Fate, Verb
from nstance.server import wiring
from support import ports

free_port = ports.free_port


def away_at_first(times: int) -> Callable[[Verb, str], Fate]:
    left = [Fate(error=Unavailable("503"))] * times
    return lambda verb, key: left.pop() if left else Fate()


async def health(port: int) -> int | None:
    """The status, or None if nobody listens."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/health") as answer:
            return answer.status
    except aiohttp.ClientConnectorError:
        return None


@pytest.fixture
def meanwhile(free_port: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Takes the place of the default port."""
    monkeypatch.setattr(wiring, "HEALTH", Address("127.0.0.1", free_port))
    return free_port


async def test_f28_health_moves_to_the_configured_port(tmp_path: Path, meanwhile: int) -> None:
    """Found by chaos: a server that had to wait for its storage answered on the default port for the rest of its life."""
    async with World(tmp_path) as world:
        world.fate = away_at_first(1)
        server = await world.start("a")
        assert await health(server.base) == 200
        assert await health(meanwhile) is None


async def test_f28_a_default_port_that_is_taken_keeps_nobody_from_starting(tmp_path: Path, meanwhile: int) -> None:
    with socket.create_server(("127.0.0.1", meanwhile)):
        async with World(tmp_path) as world:
            world.fate = away_at_first(1)
            server = await world.start("a")
            assert await health(server.base) == 200
