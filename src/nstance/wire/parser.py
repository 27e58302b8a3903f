"""The HTTP/2 parser of one connection: h2's, with our limits and less memory."""

from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from nstance.wire.limits import Limits


def configuration(*, client: bool) -> H2Configuration:
    return H2Configuration(
        client_side=client,
        header_encoding="ascii",
        validate_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_inbound_headers=False,
        normalize_outbound_headers=False,
    )


class Parser(H2Connection):
    MAX_CLOSED_STREAMS = 1_000  # remembered per connection; 65,536 would be megabytes on a long-lived one

    def __init__(self, config: H2Configuration, limits: Limits) -> None:
        super().__init__(config)
        self.local_settings = Settings(
            client=bool(config.client_side),
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_metadata,
            },
        )
        self.decoder.max_header_list_size = limits.max_metadata
        for settings in (self.local_settings, self.remote_settings):
            small: Any = _CompactSettings({code: _SettingValues(values) for code, values in settings._settings.items()})
            settings._settings = small

    def close(self) -> None:
        """Break the reference cycle through its table of bound methods. It cannot parse any more."""
        self._frame_dispatch_table = {}


class _SettingValues(list[int]):
    """A setting's values, oldest first, as h2 stores them. Deques would cost 8 KB per connection."""

    __slots__ = ()

    def popleft(self) -> int:
        return self.pop(0)


class _CompactSettings(dict[Any, _SettingValues]):
    """For a setting that only the peer names, h2 itself would create a deque."""

    def __missing__(self, code: Any) -> _SettingValues:
        made = self[code] = _SettingValues([None])  # type: ignore[list-item]
        return made
