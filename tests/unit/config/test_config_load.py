"""Good configurations: both spellings, the printed ones, defaults."""

import json
from pathlib import Path

import pytest

from nstance.config import dynamic, load, resolve
from nstance.config.addresses import Address, Service
from nstance.config.errors import ConfigError
from nstance.config.model import workload
from nstance.config.policy import make_policy
from nstance.model.group import Policy
from nstance.model.ids import GroupKey, GroupName, ShardId, TenantId

EXAMPLES = Path(__file__).parents[3] / "examples"
LEAST = '{"cluster": {"id": "c"}, "shard": {"infra": {"provider": "memory"}}}'
# As the development document prints it: no cluster, no groups.
PRINTED = """{
  "server": {
    "provider": {
      "kind": "tmux", // Uses tmux provider (local agents in tmux)
      "region": "dev",
      "zone": "deva"
    },
    "bind": {
      "health_addr": "0.0.0.0:8990",
      "election_addr": "0.0.0.0:8991",
      "registration_addr": "0.0.0.0:8992",
      "operator_addr": "0.0.0.0:8993",
      "agent_addr": "0.0.0.0:8994"
    }
  }
}"""


def key(name: str, tenant: str = "default") -> GroupKey:
    return GroupKey(TenantId(tenant), GroupName(name))


def test_least_configuration_has_the_documented_defaults() -> None:
    settings = load.load(LEAST)
    shard = settings.shard
    assert make_policy(settings) == Policy()
    assert (shard.request_timeout, shard.create_rate_limit, shard.create_concurrency) == (30, 0, 32)
    assert (shard.health_check_interval, shard.default_drain_timeout, shard.shutdown_timeout) == (60, 300, 10)
    assert (shard.image_refresh_interval, shard.garbage_collection.registration_timeout) == (21600, 300)
    assert (shard.error_exit_jitter.min_delay, shard.error_exit_jitter.max_delay) == (10, 40)
    assert (shard.identity.agent_ttl, shard.identity.operator_ttl) == (30 * 86400, 365 * 86400)
    election = shard.leader_election
    assert (election.heartbeat, election.renewal, election.urgent_renewal) == (0.1, 10, 0.5)
    assert (election.promise_seconds, election.crash_wait_seconds) == (1.0, pytest.approx(0.3))
    assert (election.unreachable.lease, election.unreachable.renewal) == (1.9, 1.0)
    assert (election.alone.lease, election.alone.renewal) == (15, 5)
    assert [a.port for a in shard.bind.by_service().values()] == [8990, 8991, 8992, 8993, 8994]
    assert settings.cluster.storage.prefix == "cluster/"
    assert settings.cluster.secrets.encryption_key is not None
    assert settings.cluster.secrets.encryption_key.source == "NSTANCE_ENCRYPTION_KEY"
    assert settings.ca.ttl == workload.CA_LIFETIME_SECONDS
    assert settings.groups == {}


@pytest.mark.parametrize(("kind", "prefix"), [("file", "secret/"), ("env", "")])
def test_secrets_kept_elsewhere_leave_the_key_that_seals_the_ca(kind: str, prefix: str) -> None:
    for more, source in [
        ("", "NSTANCE_ENCRYPTION_KEY"),
        (', "encryption_key": {"provider": "file", "source": "/etc/key"}', "/etc/key"),
    ]:
        secrets = f'"secrets": {{"provider": "{kind}"{more}}}'
        text = f'{{"cluster": {{"id": "main", {secrets}}}, "shard": {{"infra": {{"provider": "process"}}}}}}'
        secrets = load.load(text).cluster.secrets
        assert secrets.encryption_key is not None
        assert (secrets.encryption_key.source, secrets.prefix) == (source, prefix)


def test_the_printed_development_block_loads() -> None:
    settings = load.load(PRINTED, shard=ShardId("dev-1"))
    assert settings.cluster.id == "example-cluster"
    assert settings.shard.id == "dev-1"
    assert (settings.shard.infra.provider, settings.shard.infra.region, settings.shard.infra.zone) == (
        "tmux",
        "dev",
        "deva",
    )
    assert settings.shard.bind.by_service()[Service.AGENT] == Address("0.0.0.0", 8994)


def test_only_local_providers_may_leave_the_cluster_unnamed() -> None:
    with pytest.raises(ConfigError, match=r"server\.cluster_id .*expected this key"):
        load.load(PRINTED.replace('"tmux"', '"aws"'))


@pytest.mark.parametrize(
    ("file", "group", "size"), [("config-dev", "demo", 3), ("config-tmux", "test", 2), ("config-netsy", "netsy", 3)]
)
def test_examples_load_for_any_shard(file: str, group: str, size: int) -> None:
    text = (EXAMPLES / f"{file}.jsonc").read_text()
    for shard in ("dev-1", "dev-2"):
        settings = load.load(text, shard=ShardId(shard), source=file)
        resolved = resolve.resolve_groups(settings, dynamic.DynamicGroups())
        assert list(resolved) == [key(group)]
        assert resolved[key(group)].group.size == size


def test_the_guide_gives_each_node_its_files_and_certificates() -> None:
    settings = load.load((EXAMPLES / "config-netsy.jsonc").read_text())
    netsy = resolve.resolve_groups(settings, dynamic.DynamicGroups())[key("netsy")]
    assert set(netsy.files) == {"server.crt", "peer.crt", "netsy.env", "config.jsonc"}
    assert set(netsy.certificates) == {"netsy.server", "netsy.peer"}
    assert netsy.certificates["netsy.server"].kind == ("server",)
    assert netsy.certificates["netsy.server"].ip == ("127.0.0.1", "::1", "{{ .Instance.IP4 }}")
    assert netsy.group.kind == "etc"
    assert (netsy.arch, netsy.group.instance_type, netsy.group.subnets) == ("arm64", "t4g.small", ("local",))
    assert netsy.userdata is not None
    assert netsy.userdata.source == "url"
    config = netsy.files["config.jsonc"]
    assert isinstance(config, workload.JsonFile)
    assert config.template["replication"] == {
        "quorum": -1,
        "degradation_count": 2,
        "chunk_buffer": {"threshold_size_mb": 4, "threshold_age_minutes": 1},
    }


def test_both_spellings_mean_the_same() -> None:
    new = {
        "cluster": {"id": "c", "secrets": {"provider": "env"}},
        "shard": {
            "id": "s",
            "infra": {"provider": "process", "region": "r", "zone": "z", "options": {"dir": "d"}},
            "subnet_pools": {"p": ["x"]},
            "expiry": {"forced_age": "3d"},
            "advertise": {"agent_addr": "a:1,b:2"},
        },
        "templates": {"t": {"kind": "abc"}},
        "groups": {"default": {"web": {"template": "t", "size": 1}, "db": {"template": "t", "vars": {"a": "b"}}}},
    }
    old = {
        "server": {
            "cluster_id": "c",
            "secrets": {"provider": "env"},
            "shard": "s",
            "provider": {"kind": "process", "region": "r", "zone": "z", "options": {"dir": "d"}},
            "subnet_pools": {"p": ["x"]},
            "expiry": {"forced_age": "3d"},
            "advertise": {"agent_addr": "a:1,b:2"},
        },
        "templates": {"t": {"kind": "abc"}},
        "groups": {"web": {"template": "t", "size": 1}, "db": {"template": "t", "vars": {"a": "b"}}},
    }
    assert load.load(json.dumps(new)) == load.load(json.dumps(old))


def test_flat_and_nested_groups_live_side_by_side() -> None:
    settings = load.load(
        '{"cluster": {"id": "c"}, "shard": {"infra": {"provider": "mock"}}, "tenants": {"acme": {}},'
        '"templates": {"t": {"kind": "abc"}},'
        '"groups": {"flat": {"template": "t"}, "default": {"template": {"template": "t"}}, "acme": {"web": {"template": "t"}}}}'
    )
    assert set(settings.groups) == {key("flat"), key("template"), key("web", "acme")}
    assert settings.shard.infra.provider == "memory"


def test_durations_are_seconds_and_ttl_may_be_hours() -> None:
    settings = load.load(
        '{"cluster": {"id": "c"}, "shard": {"infra": {"provider": "memory"}, "request_timeout": "1m30s",'
        '"default_drain_timeout": 0, "health_check_interval": "0"},'
        '"certificates": {"a": {"kind": ["server", "client"], "ttl": 12}, "b": {"kind": "client", "ttl": "7d"},'
        '"ca": {"organization": ["{{ .Cluster.ID }}"]}}}'
    )
    assert (settings.shard.request_timeout, settings.shard.default_drain_timeout) == (90, 0)
    assert settings.shard.health_check_interval == 0
    assert [settings.certificates[name].ttl for name in ("a", "b")] == [12 * 3600, 7 * 86400]
    assert settings.ca.organization == ("{{ .Cluster.ID }}",)
    assert settings.ca.ttl == workload.CA_LIFETIME_SECONDS


def test_the_shard_of_the_file_must_be_the_one_served() -> None:
    text = '{"cluster": {"id": "c"},\n"shard": {"id": "one", "infra": {"provider": "memory"}}}'
    assert load.load(text, shard=ShardId("one")).shard.id == "one"
    with pytest.raises(ConfigError, match=r'shard\.id \(line 2, column 17\): expected "two", .* found "one"'):
        load.load(text, shard=ShardId("two"))
