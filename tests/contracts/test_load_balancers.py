"""One suite for load balancers that work with every provider: a file, and a webhook with both kinds of
credentials. The suite of the providers has those of clouds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.provider_worlds import fresh_id, request, scope
from nstance.clock import SystemClock
from nstance.model.ids import GroupName, ProviderId, TenantId
from nstance.model.instance import Instance, State
from nstance.providers import errors, memory, port
from nstance.providers.member_lists import entries
from nstance.providers.member_lists.files import MemberFiles
from nstance.providers.member_lists.lists import MemberLists
from nstance.providers.member_lists.webhooks import Webhooks
from nstance.providers.port import LoadBalancer, Webhook
from support import member_service, proxmox_stand_in
from support.member_service import MemberService

SECRETS = {"front": b"s3cret\n"}


@dataclass
class World:
    balancer: LoadBalancer
    balancers: port.LoadBalancers
    records: dict[ProviderId, Instance]
    service: MemberService | None = None

    def record(self, **changes: object) -> ProviderId:
        id = fresh_id()
        made = Instance(
            id=id,
            tenant=TenantId("default"),
            group=GroupName("web"),
            state=State.RUNNING,
            created=1.0,
            provider_id=ProviderId(f"qemu:///{id}"),
            ip4="10.0.0.5",
        )
        made = replace(made, **changes)  # type: ignore[arg-type]
        assert made.provider_id is not None
        self.records[made.provider_id] = made
        return made.provider_id


async def read_secret(name: str) -> bytes:
    return SECRETS[name]


def lists(records: dict[ProviderId, Instance], stack: AsyncExitStack) -> MemberLists:
    webhooks = Webhooks(read_secret, SystemClock())
    stack.push_async_callback(webhooks.close)
    return MemberLists(webhooks, MemberFiles(SystemClock()), lambda: records, None)


async def open_webhook(stack: AsyncExitStack, auth: str = "hmac") -> World:
    records: dict[ProviderId, Instance] = {}
    service = await stack.enter_async_context(member_service.running(MemberService(b"s3cret", auth)))
    webhook = Webhook(url=service.url, secret="front", auth=auth)
    return World(LoadBalancer("front", webhook=webhook, port=8080), lists(records, stack), records, service)


@pytest.fixture(params=["file", "hmac", "token"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        records: dict[ProviderId, Instance] = {}
        if request.param == "file":
            balancer = LoadBalancer("front", file=str(tmp_path / "front.json"), port=8080)
            yield World(balancer, lists(records, stack), records)
        else:
            yield await open_webhook(stack, request.param)


@pytest.fixture
async def webhook() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield await open_webhook(stack)


async def test_registering_and_deregistering_twice_is_success(world: World) -> None:
    first, second = world.record(), world.record()
    assert await world.balancers.list_targets(world.balancer) == {}
    for id in (first, first, second):
        await world.balancers.register_target(world.balancer, id)
    assert await world.balancers.list_targets(world.balancer) == {first: True, second: True}
    for _ in range(2):
        await world.balancers.deregister_target(world.balancer, first)
    assert await world.balancers.list_targets(world.balancer) == {second: True}
    assert await world.balancers.is_draining(world.balancer, first) is False


async def test_changes_at_once_lose_nothing(world: World) -> None:
    ids = [world.record() for _ in range(12)]
    await asyncio.gather(*(world.balancers.register_target(world.balancer, id) for id in ids))
    assert set(await world.balancers.list_targets(world.balancer)) == set(ids)
    await asyncio.gather(*(world.balancers.deregister_target(world.balancer, id) for id in ids[:6]))
    assert set(await world.balancers.list_targets(world.balancer)) == set(ids[6:])


async def test_an_instance_without_a_record_is_deregistered(world: World) -> None:
    id = world.record()
    await world.balancers.register_target(world.balancer, id)
    world.records.clear()
    assert await world.balancers.list_targets(world.balancer) == {id: True}, "another shard's, or forgotten"
    await world.balancers.deregister_target(world.balancer, id)
    assert await world.balancers.list_targets(world.balancer) == {}


async def test_members_carry_their_addresses_and_are_registered_again_after_a_change(
    webhook: World, tmp_path: Path
) -> None:
    path = tmp_path / "front.json"
    for balancer in (webhook.balancer, LoadBalancer("front", file=str(path), port=8080)):
        id = webhook.record(ip6="fd00::5", hostname="web-1")
        await webhook.balancers.register_target(balancer, id)
        assert webhook.service is not None
        found = json.loads(path.read_text())["members"] if balancer.file else list(webhook.service.members.values())
        record = webhook.records[id]
        assert found == [
            {
                "provider_id": id,
                "instance": record.id,
                "tenant": "default",
                "group": "web",
                "ip4": "10.0.0.5",
                "ip6": "fd00::5",
                "hostname": "web-1",
                "port": 8080,
            }
        ]
        webhook.records[id] = replace(record, ip4="10.0.0.6")
        assert await webhook.balancers.list_targets(balancer) == {id: False}
        await webhook.balancers.register_target(balancer, id)
        assert await webhook.balancers.list_targets(balancer) == {id: True}


async def test_an_instance_without_an_address_waits(webhook: World) -> None:
    with pytest.raises(errors.UnavailableError, match="expected the address"):
        await webhook.balancers.register_target(webhook.balancer, webhook.record(ip4=""))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (0, errors.UnknownOutcomeError),
        (500, errors.UnknownOutcomeError),
        (503, errors.UnavailableError),
        (429, errors.UnavailableError),
        (403, errors.PermanentError),
        (404, errors.PermanentError),
        (307, errors.PermanentError),
    ],
)
async def test_what_follows_from_an_answer_and_that_a_repeat_heals_it(
    webhook: World, status: int, error: type[errors.ProviderError]
) -> None:
    assert webhook.service is not None
    id = webhook.record()
    webhook.service.answers = [status]
    with pytest.raises(error):
        await webhook.balancers.register_target(webhook.balancer, id)
    await webhook.balancers.register_target(webhook.balancer, id)
    assert list(webhook.service.members) == [id]


async def test_a_service_that_hangs_meets_the_deadline(webhook: World) -> None:
    assert webhook.service is not None
    assert webhook.balancer.webhook is not None
    short = replace(webhook.balancer, webhook=replace(webhook.balancer.webhook, timeout=0.05))
    webhook.service.answers = [-1]
    with pytest.raises(errors.UnknownOutcomeError, match="no answer to GET"):
        await webhook.balancers.list_targets(short)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"members": [{}]}', b'{"members": [7]}', b'{"members": {"a": 1}}', b"[" * 200_000]
)
def test_an_unreadable_list_is_an_error_and_never_empty(text: bytes) -> None:
    with pytest.raises(errors.UnavailableError, match="expected"):
        entries.parse(text, "here")


async def test_a_damaged_file_is_not_overwritten(webhook: World, tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    path.write_text("{half")
    balancer = LoadBalancer("front", file=str(path))
    with pytest.raises(errors.UnavailableError, match="found no JSON"):
        await webhook.balancers.register_target(balancer, webhook.record())
    assert path.read_text() == "{half"


async def test_a_folder_that_is_missing_is_named(webhook: World, tmp_path: Path) -> None:
    balancer = LoadBalancer("front", file=str(tmp_path / "no" / "front.json"))
    with pytest.raises(errors.UnavailableError, match="No such file or directory"):
        await webhook.balancers.register_target(balancer, webhook.record())


async def test_a_rotated_secret_is_read_again(webhook: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert webhook.service is not None
    id = webhook.record()
    await webhook.balancers.register_target(webhook.balancer, id)
    webhook.service.secret = b"newer"
    monkeypatch.setitem(SECRETS, "front", b"newer")
    with pytest.raises(errors.PermanentError, match="check the secret 'front'"):
        await webhook.balancers.deregister_target(webhook.balancer, id)
    await webhook.balancers.deregister_target(webhook.balancer, id)
    assert webhook.service.members == {}


async def test_an_old_call_is_refused_when_it_is_replayed(webhook: World) -> None:
    """The time is a part of what is signed."""
    assert webhook.service is not None
    webhook.service.age = 3600
    with pytest.raises(errors.PermanentError, match="401"):
        await webhook.balancers.register_target(webhook.balancer, webhook.record())


async def test_tls_is_verified_by_the_configured_ca(tmp_path: Path) -> None:
    certificate, key = proxmox_stand_in.make_certificate(tmp_path)
    async with AsyncExitStack() as stack:
        service = MemberService(b"")
        await stack.enter_async_context(member_service.running(service, tls=(certificate, key)))
        balancers = lists({}, stack)

        def balancer(ca_file: str) -> LoadBalancer:
            return LoadBalancer("front", webhook=Webhook(url=service.url, ca_file=ca_file))

        assert await balancers.list_targets(balancer(str(certificate))) == {}
        with pytest.raises(errors.UnavailableError, match="failed to connect"):
            await balancers.list_targets(balancer(""))
        with pytest.raises(errors.PermanentError, match="expected a CA"):
            await balancers.list_targets(balancer(str(tmp_path / "none.pem")))


async def test_a_draining_member_is_no_target_and_still_has_connections(webhook: World) -> None:
    assert webhook.service is not None
    id = webhook.record()
    await webhook.balancers.register_target(webhook.balancer, id)
    webhook.service.members[id]["draining"] = True
    assert await webhook.balancers.list_targets(webhook.balancer) == {}
    assert await webhook.balancers.is_draining(webhook.balancer, id)


async def test_load_balancers_of_the_cloud_are_passed_on() -> None:
    async with AsyncExitStack() as stack:
        cloud = memory.MemoryProvider(scope(), SystemClock())
        webhooks = Webhooks(read_secret, SystemClock())
        stack.push_async_callback(webhooks.close)
        both = MemberLists(webhooks, MemberFiles(SystemClock()), dict, cloud)
        balancer, id = LoadBalancer("cloud"), (await cloud.create(request())).provider_id
        await both.register_target(balancer, id)
        assert await cloud.list_targets(balancer) == await both.list_targets(balancer) == {id: True}
        assert await both.is_draining(balancer, id) is False
        await both.deregister_target(balancer, id)
        assert await both.list_targets(balancer) == {}
        with pytest.raises(errors.PermanentError, match="has no load balancers"):
            await lists({}, stack).list_targets(balancer)
