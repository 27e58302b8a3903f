"""The settings of one shard of `make dev-tmux`, from the environment."""

from pathlib import Path

import pytest

from nstance.dev import shard


@pytest.mark.parametrize(
    ("environment", "name", "offsets", "cache"),
    [
        ({}, "dev-1", [0], "cache"),
        ({"HONCHO_PROCESS_NAME": "server.1", "STANDBYS": "0"}, "dev-1", [0], "cache"),
        ({"HONCHO_PROCESS_NAME": "server.2"}, "dev-2", [10], "cache-dev-2"),
        ({"PS": "server#3", "STANDBYS": "1"}, "dev-3", [20, 120], "cache-dev-3"),
    ],
)
def test_number_ports_and_cache(environment: dict[str, str], name: str, offsets: list[int], cache: str) -> None:
    options = shard.read_options({**environment, "NSTANCE_DEV_TEMP": "/t"})
    assert (options.shard, options.port_offsets) == (name, offsets)
    assert options.cache(standby=False) == Path("/t") / cache
    assert options.cache(standby=True) == Path(f"/t/cache-{name}-standby")


def test_nobodys_own_aws_settings_are_used() -> None:
    mine = {"AWS_PROFILE": "production", "AWS_SESSION_TOKEN": "x", "AWS_ENDPOINT_URL": "https://real", "HOME": "/h"}
    environment = shard.dev_environment(mine, endpoint="http://127.0.0.1:8989")
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:8989"
    assert environment["AWS_ACCESS_KEY_ID"] == "dev"
    assert environment["HOME"] == "/h"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN"} & environment.keys()
    assert len(environment["NSTANCE_ENCRYPTION_KEY"]) == 32


def test_an_encryption_key_of_your_own_is_kept() -> None:
    assert shard.dev_environment({"NSTANCE_ENCRYPTION_KEY": "mine"}, endpoint="x")["NSTANCE_ENCRYPTION_KEY"] == "mine"
