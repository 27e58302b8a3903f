"""One trace from the notice to the registered replacement, across agent, server and operator."""

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component import agent_world, operator_site
from component.agent_world import Agent
from component.operator_site import Site
from component.whole_server import World, config, states
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.model.ids import InstanceId
from nstance.operator.controllers import registry
from nstance.providers.port import CreateRequest, Vm
from nstance.telemetry import trace_ids, tracing
from nstance.telemetry.logs import JsonFormatter
from nstance.telemetry.tracing import Tracing
from support.eventually import eventually
from support.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving

system_state = agent_world.system_state

GROUPS = {"default": {"web": {"template": "web", "size": 1}}}


class RealAgents(World):
    """Every VM runs the agent itself."""

    def __init__(self, dir: Path, *, tracing: Tracing, agent_tracing: Tracing | None) -> None:
        super().__init__(dir / "server", config(groups=GROUPS), tracing=tracing)
        self.home = dir
        self.real: dict[InstanceId, Agent] = {}
        self._agent_tracing = agent_tracing

    def _boot(self, request: CreateRequest, vm: Vm) -> None:
        home = self.home / request.id
        (home / "identity").mkdir(parents=True)
        (home / "identity" / "ca.crt").write_text(self.ca_pem)
        (home / "identity" / "nonce.jwt").write_text(request.nonce + "\n")
        ports = {service: self.leader.base + number for number, service in enumerate(Service)}
        environment = {
            "NSTANCE_SERVER_REGISTRATION_ADDR": f"127.0.0.1:{ports[Service.REGISTRATION]}",
            "NSTANCE_SERVER_AGENT_ADDR": f"127.0.0.1:{ports[Service.AGENT]}",
            "NSTANCE_INSTANCE_ID": request.id,
            "NSTANCE_IDENTITY_DIR": str(home / "identity"),
            "NSTANCE_KEYS_DIR": str(home / "keys"),
            "NSTANCE_RECV_DIR": str(home / "recv"),
            "NSTANCE_PROVIDER": "none",
        }
        agent = self.real[request.id] = Agent(home, environment, self._agent_tracing)
        agent.start()

    async def crash_agents(self) -> None:
        for agent in self.real.values():
            if not agent.ended:
                await agent.crash()


def exporting(receiver: OtlpReceiver, program: str) -> Tracing:
    return tracing.start(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url},
        SystemClock(),
        SystemRng(),
        program=program,
        version="1",
        instance=program,
    )


@contextlib.asynccontextmanager
async def replaced(
    tmp_path: Path, states_of_system: list[str | None], *, agents_trace: bool = True
) -> AsyncIterator[tuple[OtlpReceiver, InstanceId, InstanceId]]:
    """An agent has said that its machine goes down: who it was, and who took its place."""
    async with contextlib.AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        server, agent, operator = (
            exporting(receiver, program) for program in ("nstance-server", "nstance-agent", "nstance-operator")
        )
        for each in (server, agent, operator):
            stack.callback(each.close)
        world = RealAgents(tmp_path, tracing=server, agent_tracing=agent if agents_trace else None)
        await stack.enter_async_context(world)
        stack.push_async_callback(world.crash_agents)
        await world.start()
        await eventually(lambda: [*states(world, "web").values()] == ["running"])
        site = Site(world, tmp_path)
        await site.prepare()
        running = site.operator(build=registry.build_controllers, tracing=operator)
        await stack.enter_async_context(operator_site.running(running))
        await eventually(lambda: running.links is not None and operator_site.is_ready(running))
        await eventually(lambda: world.leader.shard.drainers.last_seen(operator_site.TENANT) is not None)
        [old] = states(world, "web")
        await eventually(lambda: len(world.leader.lead_now.agents) == 1)
        states_of_system[0] = "stopping"
        world.real[old].going_down.set()
        await eventually(lambda: states(world, "web").get(old) in ("deleted", None))
        new = await eventually(lambda: next((id for id, s in states(world, "web").items() if s == "running"), None))
        assert new is not None
        yield receiver, old, new


def by_name(spans: list[ReceivedSpan], trace_id: str) -> dict[tuple[str, str], ReceivedSpan]:
    """By program and name, with the instance."""
    return {key_of(span): span for span in spans if span.trace_id == trace_id}


def key_of(span: ReceivedSpan) -> tuple[str, str]:
    return span.name, span.attributes["nstance.instance.id"]


async def test_one_trace_leads_from_the_notice_to_the_registered_replacement(
    tmp_path: Path, system_state: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="nstance"):
        async with replaced(tmp_path, system_state) as (receiver, old, new):
            trace_id = trace_ids.end_of(old)
            wanted = {
                ("notice", old): "nstance-agent",
                ("decide", new): "nstance-server",
                ("create", new): "nstance-server",
                ("registered", new): "nstance-server",
                ("register", new): "nstance-agent",
                ("decide", old): "nstance-server",
                ("drain", old): "nstance-operator",
                ("delete", old): "nstance-server",
                ("journal", old): "nstance-server",
                ("journal", new): "nstance-server",
            }
            await eventually(lambda: wanted.keys() <= by_name(receiver.spans, trace_id).keys())
            spans = by_name(receiver.spans, trace_id)
            [birth] = {span.trace_id for span in receiver.spans if key_of(span) == ("register", old)}
            grown = by_name(receiver.spans, birth)
    assert {key: spans[key].program for key in wanted} == wanted
    ids = {span.span_id for span in spans.values()}
    assert len(ids) == len(spans)
    assert [span.name for span in spans.values() if not span.parent] == ["notice"]
    assert {span.parent for span in spans.values() if span.parent} <= ids  # every parent is there
    assert spans["decide", new].parent == spans["notice", old].span_id
    for child in ("journal", "create", "register", "registered"):
        assert spans[child, new].parent == spans["decide", new].span_id
    assert spans["decide", new].attributes["nstance.replaces"] == old
    order = [("notice", old), ("decide", new), ("journal", new), ("create", new), ("register", new)]
    starts = [spans[key].start for key in order]
    assert starts == sorted(starts)
    assert all(span.start <= span.end for span in spans.values())
    # The instance that replaced nothing has a trace of its own.
    assert birth != trace_id
    assert {name for name, _ in grown} == {"decide", "journal", "create", "registered", "register"}
    # The log of every program has the same ID.
    logged = {record.name for record in caplog.records if getattr(record, "trace_id", "") == trace_id}
    assert {"nstance.agent.traces", "nstance.server.leader.history"} <= logged


async def test_a_server_starts_the_trace_if_the_agent_has_none(tmp_path: Path, system_state: list[str | None]) -> None:
    async with replaced(tmp_path, system_state, agents_trace=False) as (receiver, old, new):
        trace_id = trace_ids.end_of(old)
        await eventually(lambda: ("delete", old) in by_name(receiver.spans, trace_id))
        await eventually(lambda: ("registered", new) in by_name(receiver.spans, trace_id))
        spans = by_name(receiver.spans, trace_id)
    [root] = [span for span in spans.values() if not span.parent]
    assert root.name == "decide"
    assert {span.parent for span in spans.values() if span.parent} <= {span.span_id for span in spans.values()}
    assert "nstance-agent" not in {span.program for span in spans.values()}


async def test_logs_in_the_work_for_a_trace_have_its_id() -> None:
    record = logging.LogRecord("nstance.x", logging.INFO, "", 0, "done", (), None)
    trace_ids.current.set("ab" * 16)
    try:
        assert f'"trace_id": "{"ab" * 16}"' in JsonFormatter("x").format(record)
    finally:
        trace_ids.current.set("")
