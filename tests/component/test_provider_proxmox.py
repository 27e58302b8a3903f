"""VMs of a Proxmox cluster (fakepve): what goes wrong half-way, and that nothing is leaked. The contract suite has the rest."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts import provider_worlds as worlds
from contracts.provider_worlds import ProxmoxWorld, fresh_id, request, scope
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import InstanceId
from nstance.providers import errors, port
from nstance.providers.port import Status
from nstance.providers.proxmox import cloning, placement, vmids
from nstance.providers.proxmox import provider as proxmox
from nstance.providers.proxmox.client import Access, ProxmoxClient
from nstance.providers.proxmox.inventory import CloningError
from nstance.providers.proxmox.preflight import DISK_RIGHTS, ISO_RIGHTS, VM_RIGHTS
from nstance.providers.proxmox.settings import ProxmoxSettings
from nstance.server import options, validation
from support import proxmox_stand_in
from support.eventually import eventually
from support.proxmox_stand_in import Rule

HERE = scope()
SCHEDULES = int(os.environ.get("NSTANCE_PROXMOX_SCHEDULES", "10"))
FIRST_SEED = int(os.environ.get("NSTANCE_FIRST_SEED", "0"))
PER_CLUSTER = 10  # a cluster takes longer to start than a schedule


@pytest.fixture
async def world() -> AsyncIterator[ProxmoxWorld]:
    async with worlds.proxmox_world() as made:
        yield made


async def nothing_left(world: ProxmoxWorld) -> None:
    assert world.stand_in.vms() == []
    assert world.stand_in.volumes() == []
    for node in ("pve1", "pve2"):
        assert [name for name in world.stand_in.isos(node) if not name.startswith("nstance-deleted-")] == []


LOST = [
    ("POST", "/clone"),
    ("POST", "/upload"),
    ("PUT", "/config"),
    ("POST", "/status/start"),
    ("GET", "/status"),
]


@pytest.mark.parametrize(("method", "part"), LOST)
async def test_a_lost_answer_is_an_unknown_outcome_and_the_repeat_finishes_it(
    world: ProxmoxWorld, method: str, part: str
) -> None:
    asked, door = request(), world.door(HERE)
    world.stand_in.rules.append(Rule(method, part))
    try:
        await door.create(asked)
    except errors.UnknownOutcomeError:
        assert world.count(asked.id) == 1, "it was made"
    vm = await world.door(HERE).create(asked)
    assert (vm.status, world.count(asked.id)) == (Status.RUNNING, 1)
    assert "nstance-new" not in world.stand_in.vm(asked.id)["tags"]
    assert await door.delete(asked.id, None) is Status.DELETED
    await nothing_left(world)


@pytest.mark.parametrize("part", ["/clone", "/upload", "/config", "/status/start"])
async def test_no_quorum_half_way_is_repeated_and_leaks_nothing(world: ProxmoxWorld, part: str) -> None:
    asked, door = request(), world.door(HERE)
    method = "PUT" if part == "/config" else "POST"
    world.stand_in.rules.append(Rule(method, part, 500, "cluster not ready - no quorum?"))
    with pytest.raises((errors.UnavailableError, errors.UnknownOutcomeError)) as caught:
        await door.create(asked)
    assert isinstance(caught.value, errors.UnavailableError) == (part == "/clone"), "a clone is not nothing"
    listed = await door.list()
    assert [(vm.id, vm.status) for vm in listed] == ([] if part == "/clone" else [(asked.id, Status.PENDING)])
    assert all(vm.cluster == "one" for vm in listed), "its notes say whose it is"
    if part == "/upload":
        assert await door.delete(asked.id, None) is Status.DELETED
    else:
        assert (await door.create(asked)).status is Status.RUNNING
        assert await door.delete(asked.id, None) is Status.DELETED
    await nothing_left(world)


async def test_a_refused_configuration_removes_the_clone(world: ProxmoxWorld) -> None:
    """The error says that nothing was created; so nothing may stay."""
    door = world.door(HERE)
    with pytest.raises(errors.PermanentError, match="expected a disk scsi9 in the template") as caught:
        await door.create(request(args={"DiskDevice": "scsi9"}, instance_type="cpu:1,memory:64,disk:9"))
    assert caught.value.parameter == "DiskDevice"
    await nothing_left(world)


async def test_a_refusal_after_the_start_does_not_say_that_nothing_was_created(world: ProxmoxWorld) -> None:
    """A right that was taken away meanwhile: the VM runs, and the repeat finishes it."""
    asked, door = request(), world.door(HERE)
    start = door._start  # type: ignore[attr-defined]

    async def start_without_rights(vm: object) -> None:
        await start(vm)
        world.stand_in.rules.append(Rule("PUT", "/config", 403, "Permission check failed (/vms/1, VM.Config.Options)"))

    door._start = start_without_rights  # type: ignore[attr-defined]
    with pytest.raises(errors.UnknownOutcomeError, match=r"VM\.Config\.Options"):
        await door.create(asked)
    assert world.count(asked.id) == 1
    assert (await world.door(HERE).create(asked)).status is Status.RUNNING
    assert await _deleted(door, asked.id)
    await nothing_left(world)


async def test_a_disk_that_was_not_resized_is_resized_by_the_repeat(world: ProxmoxWorld) -> None:
    """The VM is not started with the small disk of its template."""
    asked, door = request(instance_type="cpu:1,memory:64,disk:9"), world.door(HERE)
    world.stand_in.rules.append(Rule("PUT", "/resize", 500, "cluster not ready - no quorum?"))
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(asked)
    assert (await world.door(HERE).create(asked)).status is Status.RUNNING
    assert len([path for method, path in world.stand_in.calls if path.endswith("/resize")]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"TemplateName": "debain"}}, "expected a template 'debain' in the cluster, found none"),
        ({"args": {"StoragePool": "nowhere"}}, "it has no storage nowhere"),
        ({"args": {"StoragePool": "local"}}, "storage local has no content type 'images'"),
        ({"instance_type": "large"}, "expected an instance type such as"),
        ({"userdata": b"x" * 2_000_000}, "expected at most 1048576 bytes of userdata"),
    ],
)
async def test_bad_requests_are_refused_before_anything_is_made(
    world: ProxmoxWorld, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.PermanentError, match=message):
        await world.door(HERE).create(request(**changes))
    assert not [call for call in world.stand_in.calls if call[0] != "GET"]


async def test_a_vmid_that_is_taken_is_drawn_again(world: ProxmoxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, door = request(), world.door(HERE)
    monkeypatch.setattr(vmids, "draw", lambda id, attempt, vmids: 9001 + attempt)
    world.stand_in.ask(
        "POST",
        "/nodes/pve1/lxc",
        vmid=9003,
        ostemplate="local:vztmpl/debian.tar.zst",
        storage="local-lvm",
        hostname="other",
    )
    await door.create(asked)
    assert world.stand_in.vm(asked.id)["vmid"] == 9004, "9001 and 9002 are templates, 9003 is a container"


async def test_a_vmid_that_was_taken_for_a_moment_is_asked_for_again(world: ProxmoxWorld) -> None:
    """Who took it may have been another call for this instance."""
    asked, door = request(), world.door(HERE)
    vmid = vmids.draw(asked.id, 0, ProxmoxSettings().vmids)
    world.stand_in.rules.append(Rule("POST", "/clone", 500, f"VM {vmid} already exists on node 'pve2'"))
    await door.create(asked)
    assert world.stand_in.vm(asked.id)["vmid"] == vmid


async def test_an_unfinished_clone_is_waited_for_and_never_doubled(world: ProxmoxWorld) -> None:
    """It has no name yet, and its creator is gone."""
    asked, doors = request(), [world.door(HERE), world.door(HERE)]
    world.stand_in.clone_looks, world.stand_in.report_lag = 12, 50
    creating = asyncio.create_task(doors[0].create(asked))
    await eventually(lambda: world.stand_in.vms() != [])
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    with pytest.raises(errors.UnavailableError, match="is being cloned and may be"):
        await doors[1].get(asked.id, None)
    assert await doors[1].list() == []
    with pytest.raises(errors.UnavailableError, match="is being cloned and may be"):
        await doors[1].delete(asked.id, None)
    with pytest.raises(errors.PermanentError, match="was deleted"):
        await doors[1].create(asked)
    assert await _deleted(doors[1], asked.id)
    await nothing_left(world)


async def test_a_new_vm_is_found_before_its_node_reports_it(world: ProxmoxWorld) -> None:
    asked, doors = request(), [world.door(HERE), world.door(HERE)]
    world.stand_in.report_lag = 1000
    made = await doors[0].create(asked)
    for door in doors:
        assert await door.get(asked.id, made.provider_id) == made
        assert await door.list() == [made]
        assert await door.create(asked) == made
    assert world.count(asked.id) == 1
    assert await _deleted(doors[1], asked.id)


async def test_the_memory_of_a_new_vm_counts_before_its_node_reports_it(world: ProxmoxWorld) -> None:
    """For a while the cluster shows that of the template."""
    big, door = "cpu:1,memory:5000", world.door(HERE)
    world.stand_in.ask(
        "POST", "/nodes/pve1/lxc", vmid=700, ostemplate="local:vztmpl/debian.tar.zst", storage="local-lvm", memory=5000
    )
    world.stand_in.ask("POST", "/nodes/pve1/lxc/700/status/start")
    vm = await door.create(request(instance_type=big))
    assert world.stand_in.vm(vm.id)["node"] == "pve2", "containers count"
    world.stand_in.ask("PUT", f"{world.stand_in.path(vm.id)}/config", memory=512)
    with pytest.raises(errors.NoCapacityError):
        await door.create(request(instance_type=big))
    assert await _deleted(door, vm.id)
    await door.create(request(instance_type=big))


async def test_a_vmid_that_was_used_again_hides_nothing(world: ProxmoxWorld) -> None:
    """For some seconds the cluster shows the name of the VM that had it before."""
    asked, door = request(), world.door(HERE)
    made = await door.create(asked)
    await door.list()
    world.stand_in.renamed[int(str(made.provider_id).split("/")[3])] = "old-vm"
    assert await world.door(HERE).create(asked) == made
    assert world.count(asked.id) == 1


async def test_a_template_on_an_offline_node_is_not_missing(world: ProxmoxWorld) -> None:
    world.stand_in.ask("POST", "/nodes/pve2/qemu", vmid=501, name="private", scsi0="local-lvm:2", memory=512)
    world.stand_in.ask("POST", "/nodes/pve2/qemu/501/template")
    args = {"TemplateName": "private"}
    world.stand_in.offline = {"pve2"}
    with pytest.raises(errors.UnavailableError, match="what is on pve2, which is offline, cannot be seen"):
        await world.door(HERE).create(request(args=args))
    world.stand_in.offline = set()
    await world.door(HERE).create(request(args=args))


async def test_vms_of_an_older_server_on_an_offline_node_are_an_error_and_not_missing(world: ProxmoxWorld) -> None:
    """Their tags do not say which instance they are."""
    door = world.door(HERE)
    vm = await door.create(request())
    found = world.stand_in.vm(vm.id)
    tags = ";".join(tag for tag in found["tags"].split(";") if not tag.startswith("nstance-id-"))
    world.stand_in.ask("PUT", f"{world.stand_in.path(vm.id)}/config", tags=tags)
    world.stand_in.offline = {found["node"]}
    with pytest.raises(errors.UnavailableError, match="is ours, and its name is not known"):
        await door.list()
    with pytest.raises(errors.UnavailableError, match="may be"):
        await door.get(vm.id, vm.provider_id)


async def test_a_vmid_that_was_used_again_is_not_deleted(world: ProxmoxWorld) -> None:
    """Between the list and the delete another VM took the VMID."""
    asked, door = request(), world.door(HERE)
    await door.create(asked)
    found = await door._inventory.find(asked.id)  # type: ignore[attr-defined]
    world.stand_in.ask("PUT", f"{found.path}/config", name="somebody-elses")
    assert await door._destroy(found)  # type: ignore[attr-defined]
    assert [vm["name"] for vm in world.stand_in.vms()] == ["somebody-elses"]


async def test_a_locked_vm_is_deleted_later(world: ProxmoxWorld) -> None:
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    world.stand_in.rules.append(Rule("POST", "/status/stop", 500, "VM is locked (backup)"))
    with pytest.raises(errors.UnavailableError, match="locked"):
        await door.delete(asked.id, vm.provider_id)
    assert await door.delete(asked.id, vm.provider_id) is Status.DELETED
    await nothing_left(world)


async def test_an_offline_node_is_unknown_and_skipped(world: ProxmoxWorld) -> None:
    asked, door = request(), world.door(HERE)
    await door.create(asked)
    node = world.stand_in.vm(asked.id)["node"]
    world.stand_in.offline.add(node)
    assert [(vm.id, vm.status) for vm in await door.list()] == [(asked.id, Status.UNKNOWN)]
    with pytest.raises(errors.UnavailableError, match="offline"):
        await door.delete(asked.id, None)
    other = request()
    await door.create(other)
    assert world.stand_in.vm(other.id)["node"] != node
    world.stand_in.offline.clear()
    assert await door.delete(asked.id, None) is Status.DELETED


async def test_a_full_cluster_is_no_capacity(world: ProxmoxWorld) -> None:
    door = world.door(HERE)
    big = "cpu:1,memory:5000"
    first, second = [await door.create(request(instance_type=big)) for _ in range(2)]
    assert {world.stand_in.vm(vm.id)["node"] for vm in (first, second)} == {"pve1", "pve2"}
    with pytest.raises(errors.NoCapacityError, match="3192 MiB of memory left"):
        await door.create(request(instance_type=big))


async def test_a_template_on_shared_storage_serves_all_nodes(world: ProxmoxWorld) -> None:
    """Without a template of its own, a node gets VMs only from a shared one."""
    ask = world.stand_in.ask
    ask("POST", "/storage", storage="nfs", type="dir", path="/mnt/nfs", shared=1, content="images,iso")
    ask("POST", "/nodes/pve2/qemu", vmid=500, name="shared", scsi0="nfs:2", memory=512)
    ask("POST", "/nodes/pve2/qemu", vmid=501, name="private", scsi0="local-lvm:2", memory=512)
    for vmid in (500, 501):
        ask("POST", f"/nodes/pve2/qemu/{vmid}/template")
    door = world.door(HERE)

    async def nodes_of(template: str) -> list[str]:
        args = {"TemplateName": template, "StoragePool": "nfs"}
        made = [await door.create(request(args=args, instance_type="cpu:1,memory:1000")) for _ in range(4)]
        found = sorted(world.stand_in.vm(vm.id)["node"] for vm in made)
        assert all(vm.status is Status.RUNNING for vm in made)
        for vm in made:
            assert await door.delete(vm.id, vm.provider_id) is Status.DELETED
        return found

    assert await nodes_of("shared") == ["pve1", "pve1", "pve2", "pve2"]
    assert await nodes_of("private") == ["pve2"] * 4


async def test_vms_in_flight_count(world: ProxmoxWorld) -> None:
    """Of eight at once four fit: what is promised but not yet shown is not promised twice."""
    door = world.door(HERE)
    calls = [door.create(request(instance_type="cpu:1,memory:3000")) for _ in range(8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, errors.NoCapacityError) for each in answers) == 4, answers
    nodes = [vm["node"] for vm in world.stand_in.vms()]
    assert (nodes.count("pve1"), nodes.count("pve2")) == (2, 2)


async def test_a_delete_during_a_create_wins(world: ProxmoxWorld) -> None:
    asked, doors = request(), [world.door(HERE), world.door(HERE)]
    creating = asyncio.create_task(doors[0].create(asked))
    await eventually(lambda: any("/clone" in path for _, path in world.stand_in.calls))
    assert await _deleted(doors[1], asked.id)
    answer = await asyncio.gather(creating, return_exceptions=True)
    assert isinstance(answer[0], errors.ProviderError)
    assert await _deleted(doors[1], asked.id)
    await nothing_left(world)


async def test_a_delete_that_broke_before_the_seed_was_removed_is_finished(world: ProxmoxWorld) -> None:
    asked, door = request(), world.door(HERE)
    await door.create(asked)
    world.stand_in.rules.append(Rule("DELETE", "/storage/local/content", 500, "cluster not ready - no quorum?"))
    with pytest.raises(errors.UnavailableError):
        await door.delete(asked.id, None)
    assert world.count(asked.id) == 0
    assert f"nstance-{asked.id}.iso" in world.stand_in.isos(), "its seed is still there"
    assert await world.door(HERE).delete(asked.id, None) is Status.DELETED
    await nothing_left(world)


async def test_a_clone_whose_creator_died_during_a_delete_is_removed(world: ProxmoxWorld) -> None:
    """The delete saw no VM, and the create died before it saw the tombstone."""
    late, door = request(), world.door(HERE)
    world.stand_in.rules.append(Rule("POST", "/upload", 500, "cluster not ready - no quorum?"))
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(late)
    await door._seeds.bury(["pve1", "pve2"], late.id)  # type: ignore[attr-defined]
    assert world.count(late.id) == 1
    other = await door.create(request())
    assert await _deleted(world.door(HERE), other.id)
    await nothing_left(world)


async def test_tombstones_are_removed_after_a_day(world: ProxmoxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    door = world.door(HERE)
    ids = [fresh_id(), fresh_id()]
    await door.create(request(ids[0]))
    await door.delete(ids[0], None)
    assert world.stand_in.isos() == [f"nstance-deleted-{ids[0]}.iso"]
    monkeypatch.setattr("nstance.providers.proxmox.seeds.TOMBSTONE_SECONDS", -5.0)
    other = world.door(HERE)
    await other.create(request(ids[1]))
    await other.delete(ids[1], None)
    assert world.stand_in.isos() == []


async def test_a_tombstone_is_seen_while_a_node_is_offline(world: ProxmoxWorld) -> None:
    """Whatever node it is, a create of a deleted ID that comes late makes nothing."""
    asked, door = request(), world.door(HERE)
    await door.create(asked)
    assert await _deleted(door, asked.id)
    for node in ("pve1", "pve2"):
        world.stand_in.offline = {node}
        with pytest.raises(errors.PermanentError, match="was deleted"):
            await world.door(HERE).create(asked)
    world.stand_in.offline = set()
    await nothing_left(world)


async def test_a_node_without_the_iso_storage_is_skipped(world: ProxmoxWorld) -> None:
    world.stand_in.ask("POST", "/storage", storage="seeds", type="dir", path="/seeds", content="iso", nodes="pve2")
    settings = ProxmoxSettings(iso_storage="seeds", limits=placement.Limits(reserve_memory_mib=0))
    door = worlds.Clones(HERE, ProxmoxClient(world.access(), SystemClock()), SystemClock(), settings)
    made = [await door.create(request()) for _ in range(2)]
    assert {world.stand_in.vm(vm.id)["node"] for vm in made} == {"pve2"}
    for vm in made:
        assert await _deleted(door, vm.id)
    await door.close()


async def test_one_of_several_storages_is_enough(world: ProxmoxWorld) -> None:
    vm = await world.door(HERE).create(request(args={"StoragePool": ["nowhere", "local-lvm"]}))
    assert "local-lvm:" in world.stand_in.ask("GET", f"{world.stand_in.path(vm.id)}/config")["scsi0"]


async def test_the_network_is_configured_and_a_bad_one_refused_before_anything_is_made(world: ProxmoxWorld) -> None:
    door = world.door(HERE)
    with pytest.raises(errors.PermanentError) as caught:
        await door.create(request(args={"IpConfig": "ip=10.0.0.5"}))
    assert caught.value.parameter == "IpConfig"
    assert not [call for call in world.stand_in.calls if call[0] != "GET"]
    args = {"IpConfig": "ip=10.0.0.5/24,gw=10.0.0.1", "Bridge": "vmbr1", "Vlan": 7, "Nameservers": ["10.0.0.2"]}
    vm = await door.create(request(args=args))
    interface = world.stand_in.ask("GET", f"{world.stand_in.path(vm.id)}/config")["net0"]
    assert ("bridge=vmbr1" in interface, "tag=7" in interface) == (True, True)
    mac = interface.partition("=")[2].partition(",")[0].lower()
    sent = next(body for path, body in world.stand_in.uploads if f"nstance-{vm.id}.iso" in path)
    assert f'"macaddress": "{mac}"'.encode() in sent
    assert b'"addresses": ["10.0.0.5/24"]' in sent


def plan(*args: dict[str, object], types: tuple[str, ...] = ("cpu:1,memory:64",)) -> port.CloudPlan:
    usual = {"TemplateName": "debian", "StoragePool": "local-lvm"}
    launches = [
        port.PlannedLaunch(
            template=f"t{number}", instance_types=types, markets=(), subnets=(), args={**usual, **changes}
        )
        for number, changes in enumerate(args)
    ]
    return port.CloudPlan(launches=launches)


async def test_the_check_before_a_start_finds_every_fault_with_its_path(world: ProxmoxWorld) -> None:
    door = world.door(HERE)
    assert isinstance(door, port.Preflight)
    assert await door.preflight(plan({})) == []
    faults = await door.preflight(
        plan(
            {"TemplateName": "debain"},
            {"StoragePool": "local"},
            {"StoragePool": "nowhere"},
            {"Vlam": 3},
            {"IpConfig": "ip=10.0.0.5"},
        )
    )
    places = [(fault.path[1], fault.path[-1]) for fault in faults]
    assert sorted(places) == [
        ("t0", "TemplateName"),
        ("t1", "StoragePool"),
        ("t2", "StoragePool"),
        ("t3", "Vlam"),
        ("t4", "IpConfig"),
    ]
    assert any("storage local has no content type 'images'" in fault.text for fault in faults)
    settings = ProxmoxSettings(iso_storage="local-lvm", limits=placement.Limits(nodes=("pve1", "pve9")))
    client = ProxmoxClient(world.access(), SystemClock())
    other = proxmox.ProxmoxProvider(HERE, client, SystemClock(), settings)
    found = {fault.path: fault.text for fault in await other.preflight(plan({}))}
    await other.close()
    assert "storage local-lvm has no content type 'iso'" in found["templates", "t0", "args", "StoragePool"]
    assert "found 'pve9'" in found["shard", "infra", "options", "nodes", 1]
    disk = ("cpu:1,memory:64,disk:9",)
    assert [fault.path[-1] for fault in await door.preflight(plan({}, {"DiskDevice": "sata1"}, types=disk))] == [
        "DiskDevice"
    ]
    assert not [call for call in world.stand_in.calls if call[0] != "GET"]


async def test_validate_online_shows_faults_with_their_path_in_the_file(
    world: ProxmoxWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXMOX_TOKEN_ID", proxmox_stand_in.TOKEN)
    monkeypatch.setenv("NSTANCE_SECRET_PVE", proxmox_stand_in.SECRET)
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "0" * 64)
    document = {
        "cluster": {"id": "demo", "secrets": {"provider": "env"}},
        "shard": {
            "infra": {"provider": "proxmox", "options": {"api_url": world._url, "token_secret_name": "pve"}},
        },
        "templates": {
            "web": {
                "kind": "web",
                "instance_type": "cpu:1,memory:64",
                "args": {"TemplateName": "debain", "StoragePool": "local-lvm"},
            }
        },
        "groups": {"default": {"web": {"template": "web", "size": 1}}},
    }
    place = tmp_path / "bucket" / "shard" / "one" / "config.jsonc"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(document, indent=1))
    words = ["--storage", "file", "--bucket", str(tmp_path / "bucket"), "--shard", "one", "--validate", "--online"]
    found = await validation.validate(options.parse(words, version=""), SystemClock(), SystemRng())
    faults = [(each.path, each.message, bool(each.line)) for each in found if "template" in each.message]
    assert faults == [
        ("templates.web.args.TemplateName", "expected a template 'debain' in the cluster, found none", True)
    ]


async def test_the_check_before_a_start_names_missing_rights(world: ProxmoxWorld) -> None:
    everything = dict.fromkeys((*VM_RIGHTS, *DISK_RIGHTS, *ISO_RIGHTS, "Sys.Audit"), 1)
    world.stand_in.permissions = {
        "/": everything,
        "/vms": {name: 1 for name in VM_RIGHTS if name != "VM.Clone"},
        "/storage/local": {"Datastore.Audit": 1},
    }
    door = world.door(HERE)
    assert isinstance(door, port.Preflight)
    texts = [fault.text for fault in await door.preflight(plan({}))]
    assert len(texts) == 2
    assert "expected a token with VM.Clone on /vms" in texts[0]
    assert "Datastore.AllocateTemplate, Datastore.Allocate on /storage/local" in texts[1]


async def test_the_token_comes_from_the_secret_store_and_may_be_rotated(world: ProxmoxWorld) -> None:
    tokens = [b"old", f"{proxmox_stand_in.SECRET}\n".encode()]
    stale = [b"old", b"old"]

    def open_with(given: list[bytes]) -> port.Instances:
        async def read() -> bytes:
            return given.pop(0)

        client = ProxmoxClient(replace(world.access(), token_secret="", read_token=read), SystemClock())
        return proxmox.ProxmoxProvider(HERE, client, SystemClock(), ProxmoxSettings())

    doors = [open_with(tokens), open_with(stale)]
    assert (await doors[0].list(), tokens) == ([], [])
    with pytest.raises(errors.PermanentError, match="authentication failure"):
        await doors[1].list()
    for door in doors:
        await door.close()


async def test_a_token_that_sees_too_little_is_refused(world: ProxmoxWorld) -> None:
    """Proxmox would answer with a short list, which looks like a mass loss."""
    world.stand_in.permissions = {"/vms/100": {"VM.Audit": 1}}
    with pytest.raises(errors.PermanentError, match=r"expected a token with VM\.Audit on /vms") as caught:
        await world.door(HERE).list()
    assert caught.value.permission == "VM.Audit on /vms"


async def test_a_right_that_is_taken_away_later_is_no_mass_loss(world: ProxmoxWorld) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    assert [each.id for each in await door.list()] == [vm.id]
    world.stand_in.permissions = {"/vms/100": {"VM.Audit": 1}}
    for look in (door.list(), door.get(vm.id, vm.provider_id), door.create(request())):
        with pytest.raises(errors.PermanentError, match=r"expected a token with VM\.Audit on /vms"):
            await look


async def test_a_wrong_token_and_no_proxmox_at_all() -> None:
    async with worlds.proxmox_world() as world:
        client = ProxmoxClient(Access(url=world._url, token_id="a@pve!b", token_secret="x"), SystemClock())
        door = proxmox.ProxmoxProvider(HERE, client, SystemClock(), ProxmoxSettings())
        with pytest.raises(errors.PermanentError, match="PROXMOX_TOKEN_ID"):
            await door.list()
        await door.close()
    client = ProxmoxClient(Access(url="http://127.0.0.1:1", token_id="a", token_secret="x"), SystemClock())
    with pytest.raises(errors.UnavailableError, match="failed to connect"):
        await client.get("/version", permission="")
    await client.close()


async def test_tls_is_verified_by_a_ca_or_a_fingerprint(tmp_path: Path) -> None:
    with proxmox_stand_in.cluster(tmp_path) as stand_in:
        url = f"https://127.0.0.1:{stand_in.port}"
        certificate = tmp_path / "pve.crt"
        right = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).digest()

        async def answer(**trust: object) -> str:
            access = Access(url=url, token_id="a@pve!b", token_secret="x", **trust)  # type: ignore[arg-type]
            client = ProxmoxClient(access, SystemClock())
            try:
                await client.get("/version", permission="")
            except errors.PermanentError:
                return "trusted"  # it got as far as the token
            except errors.UnavailableError as problem:
                return str(problem)
            finally:
                await client.close()
            return "open"

        assert await answer(ca_file=certificate) == "trusted"
        assert await answer(fingerprint=right) == "trusted"
        assert await answer(verify_tls=False) == "trusted"
        assert "failed to connect" in await answer()
        assert "failed to connect" in await answer(fingerprint=b"\0" * 32)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SCHEDULES, PER_CLUSTER))
async def test_random_schedules_of_faults_lose_leak_and_double_nothing(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are lost before or after their effect, refused for want of a quorum or by a lock, tasks take long, a node is
    offline, creates are cancelled, servers change, and VMIDs collide; in the cluster's own books there is one VM for each
    that was asked for, and nothing else."""
    monkeypatch.setattr(vmids, "draw", _draw_from_few)
    monkeypatch.setattr(cloning, "UNLOCK_SECONDS", 5.0)
    async with worlds.proxmox_world(time_scale=0.002 if first % 20 else 0.0) as world:
        for seed in range(first, min(FIRST_SEED + SCHEDULES, first + PER_CLUSTER)):
            try:
                await _run_schedule(world, seed)
            except Exception as problem:
                problem.add_note(f"seed {seed}")
                raise


def _draw_from_few(id: InstanceId, attempt: int, vmids: range) -> int:
    """Of so few that most draws are taken, as everybody who asks `nextid` at once gets the same."""
    return 5000 + (int(hashlib.sha256(id.encode()).hexdigest(), 16) + attempt) % 12


async def _run_schedule(world: ProxmoxWorld, seed: int) -> None:
    chance, stand_in = random.Random(seed), world.stand_in
    stand_in.chance = random.Random(seed + 1)
    stand_in.loss, stand_in.refusals, stand_in.slow_tasks = 0.08, 0.04, 0.2
    wanted: dict[InstanceId, str] = {}

    async def call(kind: str, id: InstanceId) -> None:
        door = chance.choice(doors)
        limit = chance.choice((0.02, 0.2, 30.0))
        try:
            async with asyncio.timeout(limit):
                if kind == "create":
                    await door.create(request(id, may_exist=True))
                else:
                    await door.delete(id, None)
        except (errors.ProviderError, TimeoutError):
            pass

    for _ in range(3):
        doors = [world.door(HERE), world.door(HERE)]
        stand_in.offline = {chance.choice(("pve1", "pve2"))} if chance.random() < 0.3 else set()
        for _ in range(2):
            wanted[fresh_id()] = "create"
        for id in wanted:
            if chance.random() < 0.3:
                wanted[id] = "delete"
        calls = [(kind, id) for id, kind in wanted.items() for _ in range(chance.choice((1, 2)))]
        chance.shuffle(calls)
        await asyncio.gather(*(call(kind, id) for kind, id in calls))
        assert all(world.count(id) <= 1 for id in wanted), "never two VMs of one ID"
    stand_in.loss = stand_in.refusals = stand_in.slow_tasks = 0.0
    stand_in.offline = set()
    door = world.door(HERE)
    for id, kind in wanted.items():
        if kind == "create":
            assert (await door.create(request(id))).status is Status.RUNNING
        else:
            assert await _deleted(door, id)
    kept = {id for id, kind in wanted.items() if kind == "create"}
    assert sorted(vm["name"] for vm in world.stand_in.vms()) == sorted(kept)
    assert {vm.id for vm in await door.list()} == kept
    for id in kept:
        assert await _deleted(door, id)
    await nothing_left(world)


async def _deleted(door: port.Instances, id: InstanceId) -> bool:
    for _ in range(100):
        with contextlib.suppress(CloningError):
            if await door.delete(id, None) is Status.DELETED:
                return True
    return False
