"""What a metadata service may say, and what firmware says about the cloud."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.agent import metadata, spot, timing
from nstance.agent.metadata import Answer, MetadataUnavailableError
from nstance.agent.settings import Provider
from nstance.clock import SystemRng
from nstance.v1 import agent_pb2

TERMINATION = agent_pb2.Notice.SPOT_TERMINATION


@pytest.mark.parametrize(
    ("files", "provider"),
    [
        ({"sys_vendor": "Amazon EC2\n", "product_name": "m7g.large\n"}, Provider.AWS),
        ({"sys_vendor": "Xen\n", "product_name": "HVM domU\n", "bios_version": "4.11.amazon\n"}, Provider.AWS),
        ({"sys_vendor": "Google\n", "product_name": "Google Compute Engine\n"}, Provider.GOOGLE),
        ({"sys_vendor": "Google\n", "product_name": "Lillipup\n"}, Provider.NONE),  # a laptop
        ({"sys_vendor": "QEMU\n", "bios_vendor": "Proxmox distribution of EDK II\n"}, Provider.PROXMOX),
        ({"sys_vendor": "QEMU\n", "bios_vendor": "SeaBIOS\n"}, Provider.NONE),
        ({}, Provider.NONE),
    ],
)
def test_the_provider_is_found_by_the_firmware(tmp_path: Path, files: dict[str, str], provider: Provider) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert spot.detect_provider(tmp_path) is provider


def test_no_firmware_tables_mean_no_provider(tmp_path: Path) -> None:
    assert spot.detect_provider(tmp_path / "absent") is Provider.NONE


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        ("2026-11-15T12:00:00Z", 1794744000000),
        ("2026-11-15T13:00:00+01:00", 1794744000000),
        ("2026-11-15T12:00:00", 1794744000000),
        ("soon", 0),
        ("0001-01-01T00:00:00Z", 0),
        (None, 0),
        (1794744000, 0),
    ],
)
def test_an_interruption_counts_whatever_its_time(time: object, milliseconds: int) -> None:
    body = json.dumps({"action": "hibernate", "time": time}).encode()
    assert spot._event(Answer(200, {}, body), "action", "time") == ("hibernate", milliseconds)


@given(
    st.one_of(
        st.binary(max_size=200), st.recursive(st.text() | st.none(), st.lists).map(lambda v: json.dumps(v).encode())
    )
)
def test_any_other_body_is_refused_in_a_sentence(body: bytes) -> None:
    with pytest.raises(MetadataUnavailableError, match="expected an event"):
        spot._event(Answer(200, {}, body), "action", "time")


@given(action=st.text(), time=st.text())
def test_any_words_of_an_event_can_be_sent(action: str, time: str) -> None:
    body = json.dumps({"action": action, "time": time}).encode()
    word, deadline = spot._event(Answer(200, {}, body), "action", "time")
    assert spot._notice(TERMINATION, deadline, word).SerializeToString() is not None


def test_half_a_character_can_be_sent() -> None:
    word, _ = spot._event(Answer(200, {}, b'{"action": "\\ud800"}'), "action", "time")
    assert spot._notice(TERMINATION, 0, word).detail == "?"


@given(head=st.binary(max_size=300), body=st.binary(max_size=300), chunked=st.booleans())
def test_any_bytes_are_an_answer_or_an_error(head: bytes, body: bytes, chunked: bool) -> None:
    with contextlib.suppress(ValueError):
        status, _ = metadata._head(b"HTTP/1.1 " + head + b"\r\n\r\n")
        assert 0 <= status <= 999

    async def read() -> None:
        reader = asyncio.StreamReader(limit=metadata.MAX_HEAD)
        reader.feed_data(body)
        reader.feed_eof()
        found = await metadata._body(reader, {"transfer-encoding": "chunked"} if chunked else {})
        assert len(found) <= len(body)

    with contextlib.suppress(ValueError, EOFError, asyncio.LimitOverrunError):
        asyncio.run(read())


def test_a_spot_machine_does_not_look_away_for_long() -> None:
    rng = SystemRng()
    waits = [timing.spot_retry_delay(failures, rng, known_spot=True) for failures in range(1, 200)]
    assert all(0 <= wait <= timing.MAX_SPOT_RETRY_SECONDS for wait in waits)
    assert max(timing.spot_retry_delay(50, rng, known_spot=False) for _ in range(200)) > timing.MAX_SPOT_RETRY_SECONDS
