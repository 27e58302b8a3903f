"""A server that runs reads the cluster's CA again from time to time: what goes wrong then is no reason to fall over."""

import logging
from pathlib import Path

import aiohttp
import pytest

from component.whole_server import CLUSTER, Running, World, config
from nstance.authority import open as authorities
from nstance.authority import rotation
from nstance.config.addresses import Service
from nstance.objects import errors
from nstance.objects.memory import Fate, Verb
from nstance.pki import ca
from nstance.secretstore import sealing
from nstance.server.errors import FatalError
from nstance.server.identity import certificate_expiry
from nstance.server.waits import WAITS, Waits

PLACES = authorities.Places("cluster/")


class QuickWorld(World):
    waits = Waits(ca_check=0.02)


class Blip:
    """Storage that answers no question about the cluster's CA."""

    asked = 0

    def __call__(self, verb: Verb, key: str) -> Fate:
        if not key.startswith("cluster/"):
            return Fate()
        self.asked += 1
        return Fate(error=errors.UnavailableError(f"{verb} {key}: the store is not there"))


async def health(running: Running) -> int:
    port = running.base + list(Service).index(Service.HEALTH)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/health") as response:
        return response.status


async def rotate_ca(world: World) -> None:
    vault = authorities.open_vault(world.store, keyring=None, insecure_dev=True, cluster=CLUSTER, rng=world.rng)
    await rotation.rotate_ca(vault, PLACES, clock=world.clock)


async def until_adopted(world: World, running: Running) -> None:
    """The server trusts what `cluster/ca.crt` says now."""
    await running.until(lambda: running.lead_now.issuer.authority.bundle == world.ca_pem)


async def test_a_blip_while_the_ca_is_read_again_leaves_the_server_well(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path) as world:
        running = await world.start()
        blip = world.fate = Blip()
        await running.until(lambda: blip.asked >= 5)
        assert await health(running) == 200
        world.fate = lambda verb, key: Fate()
        await rotate_ca(world)
        await until_adopted(world, running)
        assert await health(running) == 200


async def test_a_ca_that_cannot_be_read_for_a_while_does_not_end_its_renewal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with QuickWorld(tmp_path) as world:
        running = await world.start()
        whole = world.store.contents()[PLACES.sealed_ca]
        world.store.tamper(PLACES.sealed_ca, b"not a sealed object")
        await running.until(lambda: caplog.text.count("failed to read the cluster's CA") >= 2)
        assert await health(running) == 200
        world.store.tamper(PLACES.sealed_ca, whole)
        await rotate_ca(world)
        await until_adopted(world, running)


async def test_the_servers_certificate_is_renewed_although_the_ca_cannot_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ca, "SERVER_LIFE", 3.0)
    caplog.set_level(logging.INFO)
    async with QuickWorld(tmp_path) as world:
        running = await world.start()
        world.fate = Blip()
        caplog.clear()
        await running.until(lambda: "server certificate renewed" in caplog.text)


def expiry(running: Running, kind: str) -> float:
    name = f'nstance_certificate_expiry_timestamp_seconds{{kind="{kind}"}} '
    text = running.server.metrics.render().decode()
    return float(text.partition(name)[2].partition("\n")[0] or 0.0)


async def test_a_certificate_is_renewed_at_two_thirds_of_its_life_and_its_end_can_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca, "SERVER_LIFE", 6.0)
    async with QuickWorld(tmp_path) as world:
        running = await world.start()
        first = await running.until(lambda: expiry(running, "server"))
        assert expiry(running, "ca") == running.lead_now.issuer.authority.cas[0].ca.expires
        await running.until(lambda: expiry(running, "server") > first)
        assert world.clock.wall() >= first - 6.0 / 3 - 1.0  # certificates tell whole seconds


async def test_a_ca_that_ends_soon_is_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_expiry, "REPEAT_SECONDS", 0.1)
    async with QuickWorld(tmp_path) as world:
        running = await world.start()
        operator = await world.operator()

        async def alarms() -> int:
            events = (await operator.call("ListEvents", limit=1000)).events
            return sum("cluster ca rotate" in event.message and event.trouble for event in events)

        await running.until(lambda: expiry(running, "ca"))
        assert await alarms() == 0
        monkeypatch.setattr(
            certificate_expiry, "CA_WARNING_SECONDS", ca.CA_LIFE + 30.0
        )  # as if most of its life were over
        await running.until(lambda: b'nstance_decisions_total{reason="security"}' in running.server.metrics.render())
        assert await alarms() >= 1


def test_a_new_key_signs_only_after_every_server_had_time_to_read_it() -> None:
    assert min(rotation.NONCE_NOTICE, rotation.CA_NOTICE) > 2 * WAITS.ca_check


@pytest.mark.parametrize("kind", ["file", "env"])
async def test_secrets_kept_elsewhere_need_the_encryption_key_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The CA and the nonce key lie sealed in object storage, where nstance-admin looks for them."""
    configured = config()
    configured["cluster"]["secrets"] = {"provider": kind}
    monkeypatch.delenv("NSTANCE_ENCRYPTION_KEY", raising=False)
    async with QuickWorld(tmp_path / "without", configured) as world:
        with pytest.raises(FatalError, match="NSTANCE_ENCRYPTION_KEY is not set"):
            await world.start(insecure_dev=False)
        assert not [key for key in world.store.contents() if key.startswith("cluster/")]
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "k" * 32)
    async with QuickWorld(tmp_path / "with", configured) as world:
        await world.start(insecure_dev=False)
        for key in (PLACES.sealed_ca, PLACES.nonce_key):
            assert world.store.contents()[key].startswith(sealing.MAGIC)
