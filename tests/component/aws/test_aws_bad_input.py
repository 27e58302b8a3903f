"""What a person can get wrong is refused with its path, before any instance is made: by a check, and by a server."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from component.admin_shell import shell
from component.aws import schedules
from component.aws.aws_servers import AwsServers, aws_servers
from component.aws.test_aws_preflight import document, validate
from component.aws.test_aws_servers import words
from contracts.aws_world import aws_world
from nstance.server.config.configuration import NoConfigurationError
from support.eventually import eventually
from support.moto_server import KEYS

WRONG_IMAGE, FOREIGN_SUBNET = "ami-0123456789abcdef9", "subnet-0123456789abcdef0"
Json = dict[str, Any]


def wrong_image(document: Json) -> None:
    document["templates"]["web"]["args"] = {"ImageId": WRONG_IMAGE}
    document["groups"]["default"]["web"].pop("args", None)


def foreign_subnet(document: Json) -> None:
    document["shard"]["subnet_pools"] = {"main": [FOREIGN_SUBNET]}


def missing_profile(document: Json) -> None:
    document["templates"]["web"].setdefault("args", {})["IamInstanceProfile"] = {"Name": "nobody"}


def long_userdata(document: Json) -> None:
    """A condition hides its size until it is rendered."""
    document["templates"]["web"]["userdata"] = {"content": "{{ if .Instance.ID }}" + "x" * 17_000 + "{{ end }}"}


def longer_userdata(document: Json) -> None:
    document["templates"]["web"]["userdata"] = {"content": "x" * 17_000}


def unknown_argument(document: Json) -> None:
    document["templates"]["web"].setdefault("args", {})["IamInstanceProfil"] = {"Name": "web"}


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    with schedules.impatient():
        yield


@pytest.mark.parametrize(
    ("spoil", "path", "message"),
    [
        (wrong_image, "templates.web.args.ImageId", f"there is no image {WRONG_IMAGE}"),
        (foreign_subnet, "shard.subnet_pools.main[0]", f"there is no subnet {FOREIGN_SUBNET}"),
        (missing_profile, "templates.web.args.IamInstanceProfile", "Invalid IAM Instance Profile"),
    ],
)
async def test_the_check_names_what_the_account_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Json], None], path: str, message: str
) -> None:
    async with aws_world() as world:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        configured = document(world, tmp_path)
        spoil(configured)
        found = await validate(configured, tmp_path, monkeypatch)
        assert message in found[path]
        assert list((await world.stand_in.instances.existing()).values()) == [""]  # only the server


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (longer_userdata, r"templates\.web\.userdata\.content .*: expected at most 16384 bytes for the provider aws"),
        (unknown_argument, r'templates\.web\.args\.IamInstanceProfil .*: .*did you mean "IamInstanceProfile"'),
    ],
)
async def test_what_needs_no_account_is_refused_with_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Json], None], message: str
) -> None:
    async with aws_world() as world:
        configured = document(world, tmp_path)
        spoil(configured)
        with pytest.raises(NoConfigurationError, match=message):
            await validate(configured, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (wrong_image, "args.ImageId: InvalidAMIID.NotFound"),
        (foreign_subnet, "subnet_pools: InvalidSubnetID.NotFound"),
        (missing_profile, "args.IamInstanceProfile: InvalidParameterValue"),
        (long_userdata, "userdata: expected at most 16384 bytes, which is what EC2 takes"),
    ],
)
async def test_a_server_makes_no_instance_and_status_names_the_path(
    tmp_path: Path, spoil: Callable[[Json], None], message: str
) -> None:
    async with aws_servers(tmp_path) as world:
        await spoiled(world, spoil)
        await world.start("a")
        admin = await shell(world)

        async def is_shown() -> bool:
            return message in await words(admin, "status")

        await eventually(is_shown)
        assert await world.stand_in.instances.existing() == {}
        assert not world.problems


@pytest.mark.parametrize("spoil", [longer_userdata, unknown_argument])
async def test_a_running_server_keeps_its_configuration(tmp_path: Path, spoil: Callable[[Json], None]) -> None:
    async with aws_servers(tmp_path) as world:
        await world.resize(1)
        server = await world.start("a")
        await world.settle(1)
        before = await world.stand_in.instances.existing()
        world.configure(_spoiled(world.settings(2), spoil))
        await server.active_config.refresh()
        assert server.active_config.rejection
        assert await world.stand_in.instances.existing() == before


async def spoiled(world: AwsServers, spoil: Callable[[Json], None]) -> None:
    world.configure(_spoiled(world.settings(2), spoil))


def _spoiled(settings: Json, spoil: Callable[[Json], None]) -> Json:
    made = copy.deepcopy(settings)
    spoil(made)
    return made
