"""Configurations for servers that share one machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from nstance.clock import SystemClock
from nstance.config import load, storage_keys
from nstance.config.addresses import Service
from nstance.dev import dev_config
from nstance.dev.dev_config import Layout
from nstance.model.ids import ShardId
from nstance.objects.memory import MemoryStore
from nstance.server.config import configuration

EXAMPLES = Path(__file__).parents[3] / "examples"
SHARD = ShardId("dev-2")


def layout(*offsets: int, dev_k8s: Path | None = None) -> Layout:
    return Layout(SHARD, 20_000, offsets, Path("/instances"), dev_k8s)


def adapted(name: str, *offsets: int) -> tuple[dict[str, Any], Any]:
    body = dev_config.adapt((EXAMPLES / name).read_text(), layout(*offsets), source=name)
    return json.loads(body), load.load(body, shard=SHARD).shard


@pytest.mark.parametrize("name", ["config-dev.jsonc", "config-tmux.jsonc"])
def test_two_servers_of_a_shard_share_addresses_and_instances(name: str) -> None:
    _, shard = adapted(name, 10, 110)
    assert shard.infra.options["dir"] == "/instances"
    assert [shard.bind.by_service()[service].port for service in Service] == [20_000, 20_001, 20_002, 20_003, 20_004]
    advertised = shard.advertise.by_service()
    assert [str(address) for address in advertised[Service.AGENT]] == ["127.0.0.1:20014", "127.0.0.1:20114"]
    assert [str(address) for address in advertised[Service.REGISTRATION]] == ["127.0.0.1:20012", "127.0.0.1:20112"]


def test_guests_reach_the_servers_by_the_address_of_their_network() -> None:
    text = (EXAMPLES / "config-vm.jsonc").read_text()
    place = Layout(SHARD, 20_000, (0, 100), Path("/instances"), vm_images=Path("/images"))
    shard = load.load(dev_config.adapt(text, place, source="x"), shard=SHARD).shard
    assert shard.infra.options == {"dir": "/instances", "images": "/images"}
    advertised = shard.advertise.by_service()
    assert [str(address) for address in advertised[Service.AGENT]] == ["10.0.2.2:20004", "10.0.2.2:20104"]
    assert [str(address) for address in advertised[Service.REGISTRATION]] == ["10.0.2.2:20002", "10.0.2.2:20102"]
    assert [str(address) for address in advertised[Service.OPERATOR]] == ["127.0.0.1:20003", "127.0.0.1:20103"]


def test_a_server_alone_advertises_what_it_binds() -> None:
    document, shard = adapted("config-tmux.jsonc", 10)
    assert "advertise" not in document["server"]
    assert shard.bind.by_service()[Service.AGENT].host == "0.0.0.0"


def test_folders_that_a_configuration_names_are_kept() -> None:
    text = '{"server": {"provider": {"kind": "tmux", "options": {"dir": "mine", "dev_k8s_dir": "theirs"}}}}'
    options = json.loads(dev_config.adapt(text, layout(0), source="x"))["server"]["provider"]["options"]
    assert options == {"dir": "mine", "dev_k8s_dir": "theirs"}
    body = dev_config.adapt(text, layout(0, dev_k8s=Path("/k8s")), source="x")
    assert json.loads(body)["server"]["provider"]["options"] == {"dir": "mine", "dev_k8s_dir": "/k8s"}


def test_a_bad_file_is_refused_with_its_own_lines() -> None:
    text = (EXAMPLES / "config-dev.jsonc").read_text()
    line = 1 + text[: text.index('"size": 3')].count("\n")
    with pytest.raises(configuration.NoConfigurationError, match=f"line {line}.*did you mean"):
        dev_config.adapt(text.replace('"size": 3', '"siez": 3'), layout(0), source="x")


async def test_a_configuration_is_put_once_and_replaced_when_it_differs() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    assert await dev_config.upload(store, SHARD, b"one", clock=clock)
    assert not await dev_config.upload(store, SHARD, b"one", clock=clock)
    assert await dev_config.upload(store, SHARD, b"two", clock=clock)
    assert (await store.get(storage_keys.config(SHARD))).body == b"two"
