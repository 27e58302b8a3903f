"""Records survive the journal, and an unknown field is rejected instead of dropped."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.model import codec
from nstance.model.codec import UnknownRecordError
from nstance.model.ids import GroupName, InstanceId, Kind, ProviderId, TenantId, instance_id
from nstance.model.instance import Cause, Drain, Instance, Nonce, Put, Remove, State

TEXT = st.text(max_size=20)
TIME = st.floats(0, 4e9, allow_nan=False)
IDS = st.integers(0, 2**128 - 1).map(lambda n: instance_id(Kind("web"), n))
DRAINS = st.builds(Drain, started=TIME, cause=st.sampled_from(Cause), deadline=TIME, waits=st.booleans())
NONCES = st.builds(Nonce, jti=TEXT, issued=st.integers(0, 2**40), expires=st.integers(0, 2**40))
INSTANCES = st.builds(
    Instance,
    id=IDS,
    tenant=TEXT.map(TenantId),
    group=TEXT.map(GroupName),
    state=st.sampled_from(State),
    created=TIME,
    on_demand=st.booleans(),
    replaces=st.none() | IDS,
    replaces_for=st.none() | st.sampled_from(Cause),
    replace_wanted=st.booleans(),
    suspect=st.booleans(),
    template=TEXT,
    market=TEXT,
    instance_type=TEXT,
    subnet=TEXT,
    own_type=st.booleans(),
    vars=st.dictionaries(TEXT, TEXT, max_size=3),
    infra_hash=TEXT,
    request_hash=TEXT,
    nonce=st.none() | NONCES,
    provider_id=st.none() | TEXT.map(ProviderId),
    seen=st.booleans(),
    duplicate_vm=st.none() | TEXT.map(ProviderId),
    ip4=TEXT,
    ip6=TEXT,
    hostname=TEXT,
    registered=st.none() | TIME,
    public_key=TEXT,
    certificate_serial=TEXT,
    certificate_expires=st.none() | TIME,
    drain=st.none() | DRAINS,
    cause=st.none() | st.sampled_from(Cause),
    message=TEXT,
    ended=st.none() | TIME,
)
PLAIN = Instance(
    id=instance_id(Kind("web"), 1), tenant=TenantId("t"), group=GroupName("g"), state=State.PENDING, created=1.0
)


@given(INSTANCES)
def test_round_trip(instance: Instance) -> None:
    written = codec.canonical(codec.encode_change(Put(instance)))
    read = codec.decode_change(json.loads(written))
    assert read == Put(instance)
    assert codec.canonical(codec.encode_change(read)) == written


def test_every_field_is_in_the_round_trip() -> None:
    """A field that is added later must be added above too."""
    drawn = {f.name for f in fields(Instance)}
    named = set(codec.encode_instance(_full()))
    assert named == drawn - {"duplicate_vm"} | {"double"}  # the journal keeps the name that it began with


def _full() -> Instance:
    given_away: dict[str, Any] = {f.name: "x" for f in fields(Instance)}
    times = ("created", "made", "registered", "ready_at", "certificate_expires", "ended", "drain_timeout")
    flags = ("on_demand", "own_type", "suspect", "seen", "replace_wanted", "vacant")
    return Instance(
        **given_away
        | dict.fromkeys(times, 1.0)
        | dict.fromkeys(flags, True)
        | {
            "state": State.DRAINING,
            "cause": Cause.SPOT,
            "replaces_for": Cause.SPOT,
            "vars": {"k": "v"},
            "drain": Drain(started=1.0, cause=Cause.SPOT, deadline=2.0, waits=True),
            "nonce": Nonce(jti="j", issued=1, expires=2),
            "removal_rank": 3,
        }
    )


def test_all_fields_at_once_survive() -> None:
    assert codec.decode_instance(codec.encode_instance(_full())) == _full()


def test_a_removal_survives() -> None:
    assert codec.decode_change(codec.encode_change(Remove(PLAIN.id))) == Remove(PLAIN.id)


def test_defaults_are_not_written() -> None:
    assert codec.encode_instance(PLAIN) == {
        "id": PLAIN.id,
        "tenant": "t",
        "group": "g",
        "state": "pending",
        "created": 1.0,
    }


GOOD = codec.encode_instance(PLAIN)
DRAIN = {"started": 1.0, "cause": "spot-termination", "deadline": 2.0, "waits": True}
NONCE = {"jti": "j", "issued": 1, "expires": 2}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({**GOOD, "colour": "red"}, id="a field of a newer version"),
        pytest.param({**GOOD, "state": "hibernating"}, id="a state of a newer version"),
        pytest.param({**GOOD, "cause": "boredom"}, id="a cause of a newer version"),
        pytest.param({**GOOD, "replaces_for": 1}, id="a cause that is a number"),
        pytest.param({k: v for k, v in GOOD.items() if k != "state"}, id="no state"),
        pytest.param({k: v for k, v in GOOD.items() if k != "created"}, id="no creation time"),
        pytest.param({**GOOD, "drain": {**DRAIN, "mood": "calm"}}, id="a drain's field of a newer version"),
        pytest.param({**GOOD, "drain": {"started": 1.0}}, id="half a drain"),
        pytest.param({**GOOD, "drain": "yes"}, id="a drain that is a text"),
        pytest.param({**GOOD, "nonce": {**NONCE, "kid": "k"}}, id="a nonce's field of a newer version"),
        pytest.param({**GOOD, "nonce": {"jti": "j"}}, id="half a nonce"),
        pytest.param({**GOOD, "created": "yesterday"}, id="a time that is a text"),
        pytest.param({**GOOD, "suspect": "no"}, id="a flag that is a text"),
        pytest.param({**GOOD, "vars": ["a"]}, id="vars that are a list"),
        pytest.param({**GOOD, "vars": {"a": 1}}, id="a var that is a number"),
        pytest.param({**GOOD, "id": 7}, id="an ID that is a number"),
        pytest.param({**GOOD, "provider_id": ["i"]}, id="a provider ID that is a list"),
        pytest.param({}, id="nothing"),
    ],
)
def test_what_is_not_understood_stops_the_reader(raw: dict[str, Any]) -> None:
    """A damaged record is never skipped and never read as empty."""
    with pytest.raises(UnknownRecordError):
        codec.decode_instance(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"put": GOOD, "remove": "x"},
        {"put": "x"},
        {"remove": 1},
        {"merge": GOOD},
        {"put": None},
    ],
)
def test_unknown_changes_stop_the_reader(raw: dict[str, Any]) -> None:
    with pytest.raises(UnknownRecordError):
        codec.decode_change(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Instance)]), JSON))
def test_any_json_is_a_record_or_refused(raw: dict[str, Any]) -> None:
    try:
        record = codec.decode_instance({**GOOD, **raw})
    except UnknownRecordError:
        return
    assert codec.decode_instance(codec.encode_instance(record)) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_not_written(value: float) -> None:
    with pytest.raises(ValueError):
        codec.canonical({"x": value})


def test_one_spelling() -> None:
    assert codec.canonical({"b": 1, "a": [True, None, "ü"]}) == '{"a":[true,null,"ü"],"b":1}'.encode()


def test_ids_keep_their_type() -> None:
    assert isinstance(codec.decode_instance(GOOD).id, str)
    assert InstanceId(GOOD["id"]) == PLAIN.id
