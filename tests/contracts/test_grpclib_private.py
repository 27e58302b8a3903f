"""The private names of grpclib and h2 that `nstance.wire` leans on: an upgrade that moves one fails here, by its name."""

import asyncio
import inspect
from importlib import metadata

import grpclib.client
import grpclib.events
import grpclib.protocol
import grpclib.server
import grpclib.utils
import h2.connection
import pytest
from grpclib.config import Configuration
from grpclib.encoding.proto import ProtoCodec
from h2.config import H2Configuration
from h2.settings import SettingCodes

from nstance.wire import channel, dispatch, transport
from nstance.wire import parser as h2_parser
from nstance.wire.flag import Flag
from nstance.wire.limits import Limits


def test_the_version_is_the_one_that_was_read() -> None:
    """Read the new version's protocol.py, server.py and client.py before changing this number."""
    assert metadata.version("grpclib") == "0.4.9"


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (grpclib.protocol.Connection.__init__, ["self", "connection", "transport", "config"]),
        (grpclib.protocol.Connection.create_stream, ["self", "stream_id", "wrapper"]),
        (grpclib.protocol.Connection.ack, ["self", "stream_id", "size"]),
        (
            grpclib.protocol.Stream.__init__,
            ["self", "connection", "h2_connection", "transport", "stream_id", "wrapper"],
        ),
        (grpclib.protocol.Stream.init_stream, ["self", "stream_id", "connection"]),
        (grpclib.protocol.Stream.send_request, ["self", "headers", "end_stream", "_processor"]),
        (grpclib.protocol.Stream.send_headers, ["self", "headers", "end_stream"]),
        (grpclib.protocol.Stream.send_data, ["self", "data", "end_stream"]),
        (grpclib.protocol.Stream.recv_data, ["self", "size"]),
        (grpclib.protocol.EventsProcessor.__init__, ["self", "handler", "connection"]),
        (grpclib.protocol.EventsProcessor.close, ["self", "reason"]),
        (grpclib.protocol.H2Protocol.__init__, ["self", "handler", "config", "h2_config"]),
        (grpclib.protocol.AbstractHandler.accept, ["self", "stream", "headers", "release_stream"]),
        (grpclib.utils.Wrapper.cancel, ["self", "error"]),
        (grpclib.utils.DeadlineWrapper.start, ["self", "deadline"]),
        (grpclib.client.Channel._create_connection, ["self"]),
        (grpclib.client.Channel.__connect__, ["self"]),
    ],
)
def test_what_is_overridden_or_called_has_the_same_shape(function: object, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters  # type: ignore[arg-type]


def test_every_override_still_overrides_something() -> None:
    """A renamed hook would leave our limit standing beside the road."""
    added = {
        transport.Stream: {"_wait_window"},
        transport.Connection: {"writable"},
        transport.Processor: set(),
        channel._Stream: set(),
        channel._Interruption: set(),
        dispatch.Call: {"_wait_message", "finish"},
        dispatch.Calls: {"__init__", "_admit", "_serve", "_answer", "_outcome"},
    }
    for ours, own in added.items():
        methods = {name for name, value in vars(ours).items() if inspect.isfunction(value)}
        for name in methods - own:
            assert any(name in vars(base) for base in ours.__mro__[1:-1]), f"{ours.__name__}.{name}"


async def test_what_the_objects_carry() -> None:
    codec, events = ProtoCodec(), grpclib.events._DispatchServerEvents()
    parser = h2.connection.H2Connection(H2Configuration(client_side=False))
    for name in ("streams", "state_machine", "decoder", "local_settings", "data_to_send", "MAX_CLOSED_STREAMS"):
        assert hasattr(parser, name), f"H2Connection.{name}"
    assert parser.decoder.max_header_list_size > 0

    link = grpclib.protocol.Connection(parser, None, config=Configuration().__for_client__())  # type: ignore[arg-type]
    for name in ("_connection", "_transport", "write_ready", "stream_close_waiter"):
        assert hasattr(link, name), f"Connection.{name}"

    stream = grpclib.protocol.Stream(link, parser, None)  # type: ignore[arg-type]
    for name in (
        "connection",
        "_h2_connection",
        "_transport",
        "window_updated",
        "headers_received",
        "trailers_received",
        "id",
    ):
        assert hasattr(stream, name), f"protocol.Stream.{name}"

    handler = dispatch.Calls(dispatch.Table(methods={}, limits=transport.Limits()))
    processor = grpclib.protocol.EventsProcessor(handler, link)
    assert {
        name for name in ("streams", "processors", "connection", "handler") if not hasattr(processor, name)
    } == set()

    call = grpclib.server.Stream(
        stream,
        "/a/b",
        grpclib.const.Cardinality.UNARY_UNARY,
        type(None),
        type(None),
        codec=codec,
        status_details_codec=None,
        dispatch=events,
    )
    for name in (
        "_stream",
        "_method_name",
        "_cardinality",
        "_recv_type",
        "_send_type",
        "_send_initial_metadata_done",
        "_send_message_done",
        "_send_trailing_metadata_done",
        "_cancel_done",
    ):
        assert hasattr(call, name), f"server.Stream.{name}"

    made = grpclib.client.Channel("localhost", 1)
    for name in ("_protocol", "_connected", "_authority", "_scheme", "_connect_lock"):
        assert hasattr(made, name), f"client.Channel.{name}"
    assert grpclib.client.Handler.connection_lost is False
    assert grpclib.utils.Wrapper._error is None
    assert hasattr(grpclib.utils.Wrapper(), "_tasks")


def test_a_client_stream_uses_the_wrapper_we_put_in_place() -> None:
    source = inspect.getsource(grpclib.client.Stream)
    assert "self._wrapper = Wrapper()" in source  # what channel._Stream.__aenter__ does otherwise
    assert source.count("with self._wrapper") >= 5
    assert "self._wrapper_ctx.__exit__" in source


async def test_no_connection_or_stream_carries_a_large_event() -> None:
    """A new event in grpclib would cost its 760 bytes again, for every stream."""
    parser = h2_parser.Parser(h2_parser.configuration(client=False), Limits())
    link = transport.Connection(parser, None, config=Configuration().__for_client__())
    assert link.write_ready.is_set()
    for each in (link, link.create_stream(stream_id=1)):
        events = [value for value in vars(each).values() if isinstance(value, asyncio.Event)]
        assert events
        assert all(isinstance(value, Flag) for value in events)


def test_settings_are_kept_in_small_lists() -> None:
    """h2 keeps the values of a setting in a deque of 760 bytes; the parser replaces them, and they still work."""
    parser = h2_parser.Parser(h2_parser.configuration(client=False), Limits(max_streams=7))
    assert all(isinstance(v, h2_parser._SettingValues) for v in parser.remote_settings._settings.values())
    settings = parser.local_settings
    settings.initial_window_size = 1 << 20
    assert settings.initial_window_size == 65_535
    changed = settings.acknowledge()
    assert changed[SettingCodes.INITIAL_WINDOW_SIZE].new_value == settings.initial_window_size == 1 << 20
    assert settings.max_concurrent_streams == 7
    theirs = parser.remote_settings
    assert SettingCodes.MAX_HEADER_LIST_SIZE not in theirs
    theirs[SettingCodes.MAX_HEADER_LIST_SIZE] = 5  # named by the peer, unknown before
    assert SettingCodes.MAX_HEADER_LIST_SIZE not in theirs
    theirs.acknowledge()
    assert theirs.max_header_list_size == 5
    assert all(isinstance(v, h2_parser._SettingValues) for v in theirs._settings.values())
