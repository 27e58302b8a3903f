import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.agent import settings

ID = "etc-01jw51srryegh9snf9cmeh3k4q"
LEAST = {
    "NSTANCE_SERVER_REGISTRATION_ADDR": "10.0.0.1:8992",
    "NSTANCE_SERVER_AGENT_ADDR": "10.0.0.1:8994, [fd00::1]:8994",
    "NSTANCE_INSTANCE_ID": ID,
}


def test_defaults() -> None:
    read = settings.read(LEAST)
    assert read.agent == (settings.Address("10.0.0.1", 8994), settings.Address("fd00::1", 8994))
    assert str(read.agent[1]) == "[fd00::1]:8994"
    assert read.identity == settings.DirectorySettings(Path("/opt/nstance-agent/identity"), 0o600)
    assert read.keys == settings.DirectorySettings(Path("/opt/nstance-agent/keys"), 0o640)
    assert read.recv == settings.DirectorySettings(Path("/opt/nstance-agent/recv"), 0o640)
    assert (read.report_interval, read.health, read.on_receive) == (60.0, None, ())
    assert (read.spot_poll_interval, read.provider) == (2.0, None)
    assert read.metadata == settings.Address("169.254.169.254", 80)


def test_everything_set() -> None:
    read = settings.read(
        LEAST
        | {
            "NSTANCE_INSTANCE_KIND": "etc",
            "NSTANCE_INSTANCE_IPV4": "10.1.2.3",
            "NSTANCE_INSTANCE_IPV6": "FD00::2",
            "NSTANCE_RECV_DIR": "/srv/recv",
            "NSTANCE_RECV_MODE": "0644",
            "NSTANCE_REPORT_INTERVAL": "0",
            "NSTANCE_SPOT_POLL_INTERVAL": "5s",
            "NSTANCE_PROVIDER": "google",
            "NSTANCE_METADATA_URL": "http://[fd00:ec2::254]:8080/",
            "NSTANCE_HEALTH_ADDR": ":8080",
            "NSTANCE_ON_RECEIVE": "systemctl restart 'my app'",
        }
    )
    assert (read.ipv4, read.ipv6) == ("10.1.2.3", "fd00::2")
    assert read.recv == settings.DirectorySettings(Path("/srv/recv"), 0o644)
    assert read.report_interval == 0
    assert (read.spot_poll_interval, read.provider) == (5.0, settings.Provider.GOOGLE)
    assert read.metadata == settings.Address("fd00:ec2::254", 8080)
    assert read.health == settings.Address("", 8080)
    assert read.on_receive == ("systemctl", "restart", "my app")


def test_all_that_is_missing_is_reported_at_once() -> None:
    with pytest.raises(settings.InvalidSettingsError) as caught:
        settings.read({})
    assert [fault.split()[0] for fault in caught.value.faults] == list(LEAST)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NSTANCE_INSTANCE_ID", "etc-1", "expected an instance ID"),
        ("NSTANCE_INSTANCE_KIND", "knc", "as in the instance ID"),
        ("NSTANCE_SERVER_AGENT_ADDR", "10.0.0.1", "expected host:port"),
        ("NSTANCE_SERVER_AGENT_ADDR", "a:1,,b:2", "expected host:port"),
        ("NSTANCE_SERVER_AGENT_ADDR", ":8994", "expected a host"),
        ("NSTANCE_SERVER_AGENT_ADDR", "a:0", "expected host:port"),
        ("NSTANCE_SERVER_AGENT_ADDR", "a:65536", "expected host:port"),
        ("NSTANCE_SERVER_AGENT_ADDR", "fd00::1:8994", "in brackets"),
        ("NSTANCE_INSTANCE_IPV4", "10.0.0.256", "Octet"),
        ("NSTANCE_REPORT_INTERVAL", "60", "expected a duration"),
        ("NSTANCE_REPORT_INTERVAL", "-5s", "100ms to 1d"),
        ("NSTANCE_SPOT_POLL_INTERVAL", "0", "100ms to 1m"),
        ("NSTANCE_SPOT_POLL_INTERVAL", "2m", "100ms to 1m"),
        ("NSTANCE_PROVIDER", "gcp", "aws, google, proxmox, none"),
        ("NSTANCE_METADATA_URL", "https://169.254.169.254", "expected a URL"),
        ("NSTANCE_METADATA_URL", "http://user@host", "expected a URL"),
        ("NSTANCE_METADATA_URL", "http://host/latest", "expected a URL"),
        ("NSTANCE_METADATA_URL", "http://host:99999", "expected host:port"),
        ("NSTANCE_METADATA_URL", "http://a\r\nX: y", "expected a URL"),
        ("NSTANCE_KEYS_DIR", "keys", "absolute path"),
        ("NSTANCE_RECV_DIR", "/opt/nstance-agent/keys", "three different directories"),
        ("NSTANCE_ON_RECEIVE", "echo 'x", "quotation"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(settings.InvalidSettingsError) as caught:
        settings.read(LEAST | {name: value})
    assert len(caught.value.faults) == 1
    assert name in caught.value.faults[0]
    assert message in caught.value.faults[0]


@pytest.mark.parametrize("mode", ["4600", "0755", "0400", "0666", "689", "rw", "-600", "17777"])
def test_modes_that_give_too_much_or_too_little_are_refused(mode: str) -> None:
    with pytest.raises(settings.InvalidSettingsError, match="mode"):
        settings.read(LEAST | {"NSTANCE_KEYS_MODE": mode})


@given(
    st.dictionaries(
        st.sampled_from([*LEAST, "NSTANCE_RECV_MODE", "NSTANCE_ON_RECEIVE", "NSTANCE_HEALTH_ADDR"]), st.text()
    )
)
def test_any_environment_is_read_or_refused(environment: dict[str, str]) -> None:
    with contextlib.suppress(settings.InvalidSettingsError):
        assert settings.read(LEAST | environment).agent
