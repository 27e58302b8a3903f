"""A bucket that somebody laid hands on: the server says what it found, and changes nothing."""

import asyncio
import json
from pathlib import Path

import pytest

from component.whole_server import SHARD, World, config
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.server import main, options
from support import ports
from support.eventually import eventually

JOURNAL = f"shard/{SHARD}/journal/"


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_journal_without_its_last_slots_is_not_led_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    """The lease has seen them. Neither does a fence take their place, nor does the second try forget what is missing."""
    groups = {"acme": {"web": {"template": "web", "size": 2}}}
    async with World(tmp_path, config(groups=groups)) as world:
        first = await world.start("a")
        await first.until(lambda: sum(agent.connected for agent in world.agents.values()) == 2)
        await first.stop()
        whole = {key: body for key, body in world.store.contents().items() if key.startswith(JOURNAL)}
        missing = sorted(whole)[-lost:]
        for key in missing:
            world.store.tamper(key, None)
        starting = asyncio.create_task(world.start("b"))
        await eventually(lambda: sum(r.message == "failed to lead" for r in caplog.records) >= 2)
        record = next(r for r in caplog.records if r.message == "failed to lead")
        assert "the lease has seen slot" in record.__dict__["error"]
        assert not any(key in world.store.contents() for key in missing)
        for key in missing:
            world.store.tamper(key, whole[key])
        await starting  # it leads as soon as they are there again


async def test_a_lease_that_cannot_be_read_is_a_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bucket = tmp_path / "bucket" / "shard" / "zone-a"
    bucket.mkdir(parents=True)
    (bucket / "leader.json").write_text("garbage")
    parsed = options.parse(
        [
            "--shard=zone-a",
            "--storage=file",
            f"--bucket={tmp_path / 'bucket'}",
            f"--cachedir={tmp_path / 'cache'}",
            "--insecure-dev",
        ],
        version="",
    )
    with ports.claimed() as base:
        document = config()
        document["shard"]["bind"] = {service.key: f"127.0.0.1:{base + n}" for n, service in enumerate(Service)}
        (bucket / "config.jsonc").write_text(json.dumps(document))
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(main.run(parsed, SystemClock(), SystemRng()))
        await eventually(lambda: any(r.message.startswith("failed to read the lease") for r in caplog.records))
        assert loop.get_exception_handler() is not None, "errors that nobody waits for would be lost"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        loop.set_exception_handler(None)


def test_a_file_that_cannot_be_validated_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        parsed = options.parse([f"--validate={path}"], version="")
        assert main.validate(parsed, SystemClock(), SystemRng()) == 1
        assert f"{path} cannot be read: {why}" in capsys.readouterr().err
