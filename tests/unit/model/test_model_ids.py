"""Identifiers: the specification's example, their order, and what is rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.model import ids
from nstance.model.ids import IdMaker, InstanceId, Kind, TenantId

EXAMPLE = "etc-01jw51srryegh9snf9cmeh3k4q"
UUID = 0x01970A1CE31E74229CD5E9651D11CC97


def test_the_specifications_example() -> None:
    assert ids.instance_id(Kind("etc"), UUID) == EXAMPLE
    assert ids.uuid_of(InstanceId(EXAMPLE)) == UUID
    assert ids.kind_of(InstanceId(EXAMPLE)) == "etc"
    assert ids.is_instance_id(EXAMPLE)
    assert ids.is_uuid7(UUID)


@given(st.integers(0, 2**128 - 1))
def test_ids_and_numbers_are_one_to_one(uuid: int) -> None:
    id = ids.instance_id(Kind("knc"), uuid)
    assert ids.is_instance_id(id)
    assert ids.uuid_of(id) == uuid


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_ids_sort_as_their_numbers_do(one: int, other: int) -> None:
    kind = Kind("web")
    assert (ids.instance_id(kind, one) < ids.instance_id(kind, other)) == (one < other)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_uuid7_keeps_time_and_tail(milliseconds: int, tail: int) -> None:
    uuid = ids.uuid7(milliseconds, tail)
    assert ids.is_uuid7(uuid)
    assert uuid >> 80 == milliseconds
    assert (uuid >> 64 & 0xFFF) << 62 | uuid & (1 << 62) - 1 == tail


@pytest.mark.parametrize(
    "text",
    [
        "",
        "etc-",
        EXAMPLE[:-1],
        EXAMPLE + "0",
        EXAMPLE.upper(),
        EXAMPLE + "\n",
        "et1" + EXAMPLE[3:],
        "etcd" + EXAMPLE[4:],
        "etc_" + EXAMPLE[4:],
        "etc-8" + EXAMPLE[5:],  # would need 129 bits
        "etc-i" + EXAMPLE[5:],
        "etc-0l" + EXAMPLE[6:],
        "etc-0o" + EXAMPLE[6:],
        "etc-0u" + EXAMPLE[6:],
        "etc-٠" + EXAMPLE[5:],  # a digit elsewhere
    ],
)
def test_no_instance_ids(text: str) -> None:
    assert not ids.is_instance_id(text)


@pytest.mark.parametrize("text", ["a", "0", "a-b", "con", "us-west-2a", "a" * 32, "1-2-3"])
def test_names(text: str) -> None:
    assert ids.is_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "-a", "a-", "a--b", "A", "a_b", "a.b", "a" * 33, "a\n", "\na", "a b", "..", "../x", "%2e%2e", "a/b",
        "ä", "é", "😀", "a\x00", "ａ", "٣", "ﬁ",
    ],
)  # fmt: skip
def test_no_names(text: str) -> None:
    assert not ids.is_name(text)


@pytest.mark.parametrize(
    ("text", "is_kind"),
    [
        ("etc", True),
        ("opr", True),
        ("et", False),
        ("etcd", False),
        ("ETC", False),
        ("e1c", False),
        ("etc\n", False),
    ],
)
def test_kinds(text: str, is_kind: bool) -> None:
    assert ids.is_kind(text) == is_kind


@given(
    st.lists(st.floats(1.6e9, 2.0e9), min_size=2, max_size=40),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_ids_sort_in_the_order_they_were_made(times: list[float], noise: int, stands_still: bool) -> None:
    """Within one millisecond, and while the clock goes backwards by years."""
    clock = iter(times)
    made_at = times[0]
    maker = IdMaker(
        wall=lambda: made_at if stands_still else next(clock),
        bits=lambda count: noise & (1 << count) - 1,
    )
    made = [maker.make(Kind("web")) for _ in times]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(ids.is_instance_id(id) and ids.is_uuid7(ids.uuid_of(id)) for id in made)


def test_many_ids_in_one_millisecond_never_run_out() -> None:
    """The tail starts below its middle, so that even the largest steps have room for billions."""
    maker = IdMaker(wall=lambda: 1.7e9, bits=lambda count: (1 << count) - 1)
    made = [maker.make(Kind("web")) for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {ids.uuid_of(id) >> 80 for id in made} == {1_700_000_000_000}


def test_the_id_of_a_requested_instance_follows_from_tenant_and_uuid_and_keeps_the_time() -> None:
    made = {tenant: ids.requested_uuid(TenantId(tenant), UUID) for tenant in ("acme", "globex")}
    assert made == {tenant: ids.requested_uuid(TenantId(tenant), UUID) for tenant in made}
    assert len({UUID, *made.values()}) == 3
    assert all(ids.is_uuid7(each) and each >> 80 == UUID >> 80 for each in made.values())
