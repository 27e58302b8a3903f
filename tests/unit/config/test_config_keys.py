"""Storage keys as the specification spells them, and that no name can reach beyond its place."""

import datetime
from collections.abc import Callable

import pytest

from nstance.config import durations, storage_keys
from nstance.model.ids import InstanceId, OperatorId, ShardId, TenantId

S, T = ShardId("s-1"), TenantId("acme")
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
INSTANCE = InstanceId("etc-01jw51srryegh9snf9cmeh3k4q")
OPERATOR = OperatorId("opr-01jw51srryegh9snf9cmeh3k4q")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (storage_keys.config(S), "shard/s-1/config.jsonc"),
        (storage_keys.groups(S), "shard/s-1/groups.jsonc"),
        (storage_keys.lease(S), "shard/s-1/leader.json"),
        (storage_keys.journal_prefix(S), "shard/s-1/journal/"),
        (storage_keys.snapshot_prefix(S), "shard/s-1/snapshot/"),
        (
            storage_keys.certlog(S, tenant=T, at=EPOCH + datetime.timedelta(seconds=1.5), instance=INSTANCE),
            f"shard/s-1/certlog/acme.19700101T000001500000Z.{INSTANCE}.json",
        ),
        (storage_keys.ca_sealed(), "cluster/ca.sealed"),
        (storage_keys.ca_certificate(prefix="c"), "c/ca.crt"),
        (storage_keys.secret("registration-nonce.key"), "cluster/secret/registration-nonce.key"),
        (storage_keys.secret("a", prefix="", secrets="x"), "x/a"),
        (storage_keys.operator(T, OPERATOR), f"cluster/operator/acme.{OPERATOR}.json"),
        (storage_keys.operator_nonce("0f"), "cluster/operator-nonce/0f"),
    ],
)
def test_keys(key: str, expected: str) -> None:
    assert key == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: storage_keys.config(ShardId("../x")),
        lambda: storage_keys.ca_sealed(prefix="/abs"),
        lambda: storage_keys.ca_sealed(prefix="a/../b"),
        lambda: storage_keys.secret("a/b"),
        lambda: storage_keys.secret(".."),
        lambda: storage_keys.secret(""),
        lambda: storage_keys.operator(TenantId("a.b"), OPERATOR),
        lambda: storage_keys.operator(T, OperatorId("x")),
        lambda: storage_keys.certlog(S, tenant=T, at=EPOCH, instance=InstanceId("../x")),
        lambda: storage_keys.operator_nonce("a/b"),
    ],
)
def test_a_part_that_would_leave_its_place_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("300ms", 0.3), ("1h30m", 5400), ("7d", 604800)])
def test_durations(text: str, seconds: float) -> None:
    assert durations.parse(text) == pytest.approx(seconds)
    assert durations.format(seconds) == text


@pytest.mark.parametrize("text", ["", "5", "-1s", "+1s", "1 s", "36501d", "1e3s", "s"])
def test_durations_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        durations.parse(text)
