"""A rule between keys of a block is reported even if another key of the block is invalid."""

import json

import pytest

from nstance.config import load
from nstance.config.errors import ConfigError


def problems(cluster: dict[str, object], shard: dict[str, object]) -> dict[str, str]:
    document = {"cluster": {"id": "c", **cluster}, "shard": {"infra": {"provider": "process"}, **shard}}
    with pytest.raises(ConfigError) as raised:
        load.load(json.dumps(document))
    return {problem.path: problem.message for problem in raised.value.problems}


@pytest.mark.parametrize("other", [{"typo": 1}, {"shutdown_grace": "soon"}], ids=["unknown key", "wrong value"])
def test_another_invalid_key_hides_no_rule(other: dict[str, object]) -> None:
    found = problems({}, {"health": {"suspect_after": "70s", "dead_after": "60s", **other}})
    assert set(found) == {"shard.health", f"shard.health.{next(iter(other))}"}
    assert "suspect_after to be shorter than dead_after" in found["shard.health"]


def test_what_is_compared_with_a_wrong_value_is_not_judged() -> None:
    assert set(problems({}, {"health": {"suspect_after": "soon", "dead_after": "1s"}})) == {
        "shard.health.suspect_after"
    }


def test_no_rule_of_a_default_that_nobody_wrote() -> None:
    """Whether there must be a key depends on the provider, and that one is misspelt."""
    assert set(problems({"secrets": {"provider": "aws-secret-manager"}}, {})) == {"cluster.secrets.provider"}


def test_a_list_with_a_wrong_element_is_still_there() -> None:
    document = {"images": {"debian": {"provider": "aws", "filters": [{"name": "n", "values": ["v"], "typo": 1}]}}}
    with pytest.raises(ConfigError) as raised:
        load.load(json.dumps({"cluster": {"id": "c"}, "shard": {"infra": {"provider": "process"}}, **document}))
    assert [problem.path for problem in raised.value.problems] == ["images.debian.filters[0].typo"]


def test_a_block_breaks_all_its_rules_at_once() -> None:
    bind = {"health_addr": ":1", "election_addr": ":1", "registration_addr": ":2", "agent_addr": ":2", "typo": 1}
    election = {"heartbeat": "5s", "promise": "2s", "urgent_renewal": "3s", "member_timeout": "1s"}
    found = problems({}, {"bind": bind, "leader_election": election})
    assert ":1 for election_addr" in found["shard.bind"]
    assert ":2 for agent_addr" in found["shard.bind"]
    for word in ("three heartbeats", "urgent_renewal to be shorter", "member_timeout to be longer"):
        assert word in found["shard.leader_election"]
