"""The pure parts of the Proxmox provider: node choice, ownership, errors, VMIDs, settings."""

import json
from pathlib import Path

import pytest

from contracts.provider_worlds import fresh_id, request, scope
from nstance.providers import errors, machine_size
from nstance.providers.options import Options
from nstance.providers.proxmox import (
    arguments,
    configured,
    faults,
    inventory,
    network,
    ownership,
    placement,
    preflight,
    vmids,
)
from nstance.providers.proxmox.faults import PveError, TakenError
from nstance.providers.proxmox.placement import Limits, Node, Promise
from nstance.proxmox.network import IpConfig

SIZE = machine_size.parse("cpu:2,memory:1000")


def node(name: str, memory: int = 8000, *, is_usable: bool = True, cpus: int = 4) -> Node:
    return Node(name=name, is_usable=is_usable, memory_mib=memory, cpus=cpus)


@pytest.mark.parametrize(
    ("nodes", "allowed", "promises", "limits", "chosen"),
    [
        ([node("a"), node("b", 9000)], "ab", [], Limits(), "b"),
        ([node("a"), node("b", 9000)], "ab", [Promise("b", 2000, 1)], Limits(), "a"),
        ([node("a"), node("b", 9000, is_usable=False)], "ab", [], Limits(), "a"),
        ([node("a"), node("b", 9000)], "a", [], Limits(), "a"),
        ([node("a"), node("b", 9000)], "ab", [], Limits(nodes=("a",)), "a"),
        ([node("a"), node("b")], "ab", [Promise("a", 0, 3)], Limits(), "b"),
        ([node("a", 2024)], "a", [], Limits(), "a"),
        ([node("a", 1500)], "a", [], Limits(memory_overcommit=2.0), "a"),
    ],
)
def test_the_node_with_the_most_memory_left(
    nodes: list[Node], allowed: str, promises: list[Promise], limits: Limits, chosen: str
) -> None:
    assert placement.choose_node(nodes, dict.fromkeys(allowed, ""), promises, SIZE, limits) == chosen


def test_no_node_says_why_not_for_each() -> None:
    nodes = [node("a", 2023), node("b", is_usable=False), node("c"), node("d")]
    with pytest.raises(errors.NoCapacityError) as caught:
        placement.choose_node(nodes, {"a": "", "b": "", "c": "storage x is not active"}, [], SIZE, Limits())
    text = str(caught.value)
    assert "a has 999 MiB of memory left; b is offline or in maintenance; c: storage x is not active" in text
    assert "d: it has no such template" in text
    assert caught.value.scope is errors.CapacityScope.HOST


def test_an_owner_is_written_and_read() -> None:
    asked = request()
    owner = ownership.owner_of(scope(), asked)
    tags = ownership.tags(
        owner, asked.id, is_new=True, extra=("web", "nstance-shard-other", "nstance-new", "nstance-id-other")
    )
    assert (ownership.from_tags(tags), ownership.id_of(tags), ownership.id_of("web")) == (owner, asked.id, "")
    assert (ownership.is_new(tags), tags.split(";").count("nstance-new"), "web" in tags.split(";")) == (True, 1, True)
    assert "nstance-shard-other" not in tags
    assert not ownership.is_new(ownership.tags(owner, asked.id, is_new=False, extra=("nstance-new",)))
    assert ownership.from_notes(f"written by hand\n{ownership.notes(owner, asked)}\nmore") == owner
    for text in ("", "nstance: {", "nstance: []", "nothing"):
        assert not ownership.from_notes(text).is_known


@pytest.mark.parametrize(
    ("status", "message", "kind", "kind_of_a_read"),
    [
        (401, "authentication failure", errors.PermanentError, errors.PermanentError),
        (403, "Permission check failed (/vms/100, VM.Allocate)", errors.PermanentError, errors.PermanentError),
        (400, "Parameter verification failed.", errors.PermanentError, errors.PermanentError),
        (595, "No route to host", errors.UnavailableError, errors.UnavailableError),
        (596, "Connection timed out", errors.UnknownOutcomeError, errors.UnavailableError),
        (
            500,
            "Configuration file 'nodes/a/qemu-server/1.conf' does not exist",
            errors.NotFoundError,
            errors.NotFoundError,
        ),
        (500, "unable to create VM 200: config file already exists", TakenError, TakenError),
        (500, "CT 200 already exists on node 'a'", TakenError, TakenError),
        (500, "cluster not ready - no quorum?", errors.UnavailableError, errors.UnavailableError),
        (500, "VM is locked (backup)", errors.UnavailableError, errors.UnavailableError),
        (500, "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout", errors.UnavailableError, None),
        (500, "clone failed: No space left on device", errors.NoCapacityError, None),
        (500, "can't remove VM 1 - protection mode enabled", errors.PermanentError, None),
        (500, "something new", errors.UnknownOutcomeError, errors.UnavailableError),
        (503, "Service Unavailable", errors.UnknownOutcomeError, errors.UnavailableError),
    ],
)
def test_what_follows_from_an_error(
    status: int, message: str, kind: type[Exception], kind_of_a_read: type[Exception] | None
) -> None:
    problem = PveError(status, message)
    assert type(faults.from_pve(problem, "VM.Audit on /vms", changes=True)) is kind
    if kind_of_a_read is not None:
        assert type(faults.from_pve(problem, "VM.Audit on /vms", changes=False)) is kind_of_a_read


def test_errors_name_the_permission_and_the_parameter() -> None:
    denied = faults.from_pve(PveError(403, "Permission check failed (/vms/100, VM.Clone)"), "x", changes=True)
    assert isinstance(denied, errors.PermanentError)
    assert denied.permission == "VM.Clone on /vms/100"
    assert "docs/proxmox.md#permissions" in str(denied)
    bad = faults.from_pve(PveError(400, "Parameter verification failed.", {"cores": "too many"}), "x", changes=True)
    assert isinstance(bad, errors.PermanentError)
    assert (bad.parameter, "cores: too many" in str(bad)) == ("instance_type", True)


def test_a_vmid_follows_from_the_instance() -> None:
    few = range(100_000, 200_000)
    id = fresh_id()
    drawn = [vmids.draw(id, attempt, few) for attempt in range(8)]
    assert drawn == [vmids.draw(id, attempt, few) for attempt in range(8)]
    assert len(set(drawn)) == 8
    assert all(each in few for each in drawn)
    assert len({vmids.draw(fresh_id(), 0, few) for _ in range(1000)}) > 950


@pytest.mark.parametrize(
    ("current", "bridge", "vlan", "expected"),
    [
        ("virtio=AA:BB,bridge=vmbr0,firewall=1", "vmbr1", None, "virtio=AA:BB,firewall=1,bridge=vmbr1"),
        ("virtio=AA:BB,bridge=vmbr0,tag=5", "", 7, "virtio=AA:BB,bridge=vmbr0,tag=7"),
        ("virtio", "vmbr0", 3, "virtio,bridge=vmbr0,tag=3"),
    ],
)
def test_the_network_keeps_its_mac(current: str, bridge: str, vlan: int | None, expected: str) -> None:
    assert network.interface(current, bridge, vlan) == expected


@pytest.mark.parametrize(
    ("args", "parameter", "message"),
    [
        ({}, "TemplateName", "exactly one of"),
        ({"TemplateName": "a", "TemplateVMID": 9000}, "TemplateName", "exactly one of"),
        ({"TemplateName": "a"}, "StoragePool", "expected argument StoragePool"),
        ({"TemplateNam": "a"}, "TemplateNam", "did you mean TemplateName?"),
        ({"TemplateVMID": "9000"}, "TemplateVMID", "expected a VMID: a whole number from 100, found '9000'"),
        ({"TemplateVMID": True}, "TemplateVMID", "expected a VMID"),
        ({"FullClone": 1}, "FullClone", "expected true or false"),
        ({"Vlan": 4095}, "Vlan", "expected a whole number from 1 to 4094, found 4095"),
        ({"StoragePool": []}, "StoragePool", "expected the name of a storage, or a list of them"),
        ({"DiskDevice": "sda"}, "DiskDevice", "expected a disk such as scsi0, found 'sda'"),
        ({"Bridge": "vmbr0,tag=7"}, "Bridge", "expected the name of a bridge"),
        ({"Nameservers": ["dns.lan"]}, "Nameservers", "expected a list of addresses"),
        ({"ExtraTags": ["two words"]}, "ExtraTags", "expected a list of tags"),
    ],
)
def test_bad_arguments(args: dict[str, object], parameter: str, message: str) -> None:
    with pytest.raises(errors.PermanentError) as caught:
        arguments.parse(args)
    assert message in str(caught.value)
    assert caught.value.parameter == parameter


ENVIRONMENT = {"PROXMOX_TOKEN_ID": "a@pve!b", "PROXMOX_TOKEN_SECRET": "hunter2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vmids": "100-150"}, "expected a range of at least 100"),
        ({"vmids": "all"}, "expected a range"),
        ({"fingerprint": "AA:BB"}, "expected the SHA-256"),
        ({"ca_file": "/none"}, "expected a file, found none at /none"),
        ({"verify_tls": "no"}, "expected true or false, found str"),
        ({"memory_overcommit": 0}, "expected a number above 0"),
        ({"api_url": "https://root:hunter2@pve:8006"}, "expected https://HOST:8006"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(errors.PermanentError, match=message):
        configured.read(Options("proxmox", {"api_url": "https://pve:8006", **options}), ENVIRONMENT)


def test_good_options(tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    given = {
        "api_url": "https://pve:8006/api2/json",
        "vmids": "5000-5999",
        "fingerprint": ":".join(["0a"] * 32),
        "ca_file": str(tmp_path / "ca"),
        "nodes": ["a"],
        "reserve_memory_mib": 0,
    }
    access, settings = configured.read(Options("proxmox", given), ENVIRONMENT)
    assert (access.url, access.fingerprint, settings.vmids) == ("https://pve:8006", b"\x0a" * 32, range(5000, 6000))
    assert (settings.limits.nodes, settings.limits.reserve_memory_mib) == (("a",), 0)
    assert "hunter2" not in repr(access)


def test_promises_leave_out_what_needs_no_memory() -> None:
    def vm(name: str, status: str, **more: object) -> inventory.PveVm:
        return inventory.PveVm(vmid=1, name=name, node="a", status=status, memory_mib=10, **more)  # type: ignore[arg-type]

    vms = [vm("x", "running"), vm("x", "stopped"), vm("x", "stopped", lock="clone"), vm(fresh_id(), "stopped")]
    assert len(inventory.promises([*vms, vm("t", "stopped", is_template=True)])) == 3


def ip_config(**args: object) -> IpConfig:
    return arguments.parse({"TemplateName": "debian", "StoragePool": "local-lvm", **args}).ip


@pytest.mark.parametrize(
    ("text", "interface", "expected"),
    [
        ("ip=dhcp", "virtio=AA:BB:CC:00:00:01,bridge=vmbr0", {"dhcp4": True, "dhcp6": False}),
        ("ip6=auto", "virtio=AA:BB:CC:00:00:01", {"dhcp4": False, "dhcp6": False, "accept-ra": True}),
        (
            "ip=10.0.0.5/24,gw=10.0.0.1,ip6=fd00::5/64,gw6=fd00::1",
            "e1000=AA:BB:CC:00:00:01",
            {
                "dhcp4": False,
                "dhcp6": False,
                "addresses": ["10.0.0.5/24", "fd00::5/64"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}, {"to": "::/0", "via": "fd00::1"}],
            },
        ),
    ],
)
def test_the_network_of_a_guest(text: str, interface: str, expected: dict[str, object]) -> None:
    made = json.loads(network.render(ip_config(IpConfig=text), interface))
    assert made["ethernets"]["net0"] == {"match": {"macaddress": "aa:bb:cc:00:00:01"}, **expected}


def test_without_a_network_argument_the_guest_decides() -> None:
    assert network.render(ip_config(), "virtio=AA:BB:CC:00:00:01") == b""
    named = json.loads(
        network.render(ip_config(Nameservers=["10.0.0.2"], SearchDomain="lan"), "virtio=AA:BB:CC:00:00:01")
    )
    assert named["ethernets"]["net0"]["dhcp4"] is True
    assert named["ethernets"]["net0"]["nameservers"] == {"addresses": ["10.0.0.2"], "search": ["lan"]}


@pytest.mark.parametrize(
    "text",
    ["10.0.0.5/24", "ip=10.0.0.5", "ip=fd00::5/64", "ip=auto", "gw=10.0.0.1", "ip=dhcp,ip=dhcp", "ip=dhcp,gw=10.0.0.1"],
)
def test_a_bad_network_is_refused(text: str) -> None:
    with pytest.raises(errors.PermanentError) as caught:
        ip_config(IpConfig=text)
    assert caught.value.parameter == "IpConfig"


def test_the_storage_with_the_most_space() -> None:
    def storage(free: int, *content: str) -> inventory.Storage:
        return inventory.Storage(content=content, is_active=True, is_shared=False, free_bytes=free)

    storages = {"a": storage(5, "images"), "b": storage(9, "images"), "c": storage(99, "iso")}
    assert inventory.best_storage(storages, ["a", "b", "c"]) == "b"
    assert inventory.best_storage(storages, ["a", "none"]) == "a"


def test_rights_are_of_the_path_or_the_nearest_above_it() -> None:
    permissions = {"/": {"A": 1, "B": 0}, "/vms": {"C": 1}}
    assert preflight.rights_on(permissions, "/vms") == {"C"}
    assert preflight.rights_on(permissions, "/storage/local") == {"A"}
    assert preflight.rights_on({}, "/vms") == set()
