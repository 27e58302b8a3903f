"""Protobuf bodies: what comes out of them, and that nothing gets lost or breaks the reader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.dev.k8s import protobuf


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes | str | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content % 2**64)
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return (
        protobuf.MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")
    )


def test_a_secret_as_kubectl_sends_it() -> None:
    meta = field(1, "nonce") + field(2, "") + field(3, "default") + field(7, 0) + field(8, b"")
    meta += field(11, field(1, "a") + field(2, "b")) + field(11, field(1, "c") + field(2, "d"))
    raw = field(1, meta) + field(2, field(1, "key") + field(2, b"\x00\xff")) + field(3, "Opaque")
    assert protobuf.decode(envelope("v1", "Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "nonce", "namespace": "default", "labels": {"a": "b", "c": "d"}},
        "data": {"key": "AP8="},
        "type": "Opaque",
    }


def test_zero_means_something_where_it_was_given() -> None:
    options = field(1, 0) + field(2, b"") + field(3, 0)
    decoded = protobuf.decode(envelope("policy/v1", "Eviction", field(2, options)))
    assert decoded["deleteOptions"] == {"gracePeriodSeconds": 0, "orphanDependents": False}


def test_times_and_negative_numbers() -> None:
    meta = field(1, "a") + field(8, field(1, 1_700_000_000) + field(2, 0))
    space = protobuf.decode(envelope("v1", "Namespace", field(1, meta) + field(3, field(1, "Active"))))
    assert space["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert "status" not in space
    eviction = protobuf.decode(envelope("policy/v1", "Eviction", field(2, field(1, -10))))
    assert eviction["deleteOptions"]["gracePeriodSeconds"] == -10


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{}", "prefix"),
        (envelope("v1", "Node", b""), "'Node' are supported as JSON or YAML only"),
        (envelope("v1", "Secret", field(99, "x")), "field 99 of Secret is not supported"),
        (envelope("v1", "Secret", b"\x0a\x05ab"), "unexpected end of the body"),
        (envelope("v1", "Secret", b"\xff" * 12), "too long"),
        (envelope("v1", "Secret", field(1, 5)), "expected a string or message"),
        (envelope("policy/v1", "Eviction", field(2, field(1, "x"))), "expected a number"),
        (envelope("v1", "Secret", b"\x0b"), "wire type 3"),
    ],
)
def test_unsupported_bodies_are_rejected(raw: bytes, message: str) -> None:
    with pytest.raises(protobuf.ProtobufError, match=message):
        protobuf.decode(raw)


@settings(deadline=None)
@given(st.sampled_from(sorted(protobuf.FIELDS)), st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(kind: str, raw: bytes) -> None:
    try:
        decoded = protobuf.decode(envelope("v1", kind, raw))
    except (protobuf.ProtobufError, UnicodeDecodeError):
        return
    assert decoded["kind"] == kind


def test_every_message_that_is_named_is_described() -> None:
    known = {*protobuf.FIELDS, "", "-", "int", "bool", "bytes", "Time"}
    for message in protobuf.FIELDS:
        table = protobuf._table(message)
        assert {each.type.strip("{}") for each in table.values()} <= known, message
        assert len({each.name for each in table.values()}) == len(table)
