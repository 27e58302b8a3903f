"""Checks of running shards through the operator API, as seen from this machine."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, Identity, ShardError, load
from nstance.admin.doctor.findings import (
    DAY_SECONDS,
    EXPIRY_WARNING_DAYS,
    Finding,
    Level,
    judge_clock,
    judge_expiry,
    judge_version,
)
from nstance.admin.doctor.ports import connect
from nstance.admin.errors import CommandError
from nstance.admin.shard import instances
from nstance.admin.shard.fanout import call_each, open_clients
from nstance.admin.shard_flags import ShardSelection
from nstance.clock import Clock, SystemClock
from nstance.config import addresses

MAX_AGENTS = 20  # whose version is asked for, in each shard
STANDBY_SILENCE_MS = 5_000
SERVER_EXPIRY_SECONDS = DAY_SECONDS  # a server renews its certificate long before


async def check_shards(selection: ShardSelection) -> list[Finding]:
    clock = SystemClock()
    try:
        load(selection.identity, now=clock.wall())
    except CommandError as problem:
        message, _, advice = str(problem).partition("; ")
        return [Finding(Level.PROBLEM, "certificate", f"identity {selection.identity}", message, advice)]
    async with open_clients(selection) as clients:
        found = list(_identity(clients[0].identity, clock.wall()))
        ports = await asyncio.gather(*(_ports(shard, selection.servers[shard]) for shard in selection.shards))
        found += [finding for findings in ports for finding in findings]
        answers = await call_each(clients, lambda client: _shard(client, clock))
        found += [finding for _, findings in answers.results for finding in findings]
        for shard, error in answers.failures:
            advice = "start a server of the shard, or correct --servers; `/health` of a server says what it waits for"
            found.append(Finding(Level.PROBLEM, "leader", f"shard {shard}", str(error).partition(";")[0], advice))
    return found


def _identity(identity: Identity, now: float) -> Iterator[Finding]:
    advice = "run any command against a shard, which renews it; after its end: `cluster register-operator`"
    yield judge_expiry(
        f"identity {identity.directory}",
        expires=identity.expires,
        now=now,
        warning_seconds=(identity.expires - identity.renew_at) / 2,
        advice=advice,
    )


async def _ports(shard: str, servers: tuple[str, ...]) -> list[Finding]:
    """Only the leader has its operator port open, so a standby refuses. One that does not even refuse is cut off."""
    parsed = [addresses.parse(server) for server in servers]
    problems = await asyncio.gather(*(connect(address.host, address.port) for address in parsed))
    outcomes = dict(zip(servers, problems, strict=True))
    found = []
    for server, problem in outcomes.items():
        if problem == "":
            found.append(Finding(Level.OK, "port", f"shard {shard}", f"{server} is open"))
        elif problem == "refused":
            found.append(Finding(Level.OK, "port", f"shard {shard}", f"{server} is closed: no leader there"))
        else:
            advice = "check the address, and that firewalls and security groups allow the operator port"
            found.append(
                Finding(Level.WARNING, "port", f"shard {shard}", f"{server} does not answer: {problem}", advice)
            )
    if outcomes and "" not in outcomes.values():
        advice = "start a server, or add the leader's address to --servers"
        found.append(Finding(Level.PROBLEM, "port", f"shard {shard}", "no address of --servers is open", advice))
    return found


async def _shard(client: Client, clock: Clock) -> list[Finding]:
    """Raises ShardError if nobody leads."""
    subject = f"shard {client.shard}"
    config = await client.call("GetConfigStatus")
    found = [Finding(Level.OK, "leader", subject, f"{config.leader} leads in epoch {config.epoch}")]
    for error in config.errors:
        advice = "correct the configuration in the bucket; the last valid one stays active"
        found.append(Finding(Level.PROBLEM, "configuration", subject, error, advice))
    asked = clock.wall()
    try:
        control = await client.call("GetControlPlane")
    except ShardError as error:
        if error.code is not Status.UNIMPLEMENTED:
            raise
        advice = "upgrade the server, so that its clock, certificates and standbys can be checked"
        return [*found, Finding(Level.WARNING, "version", subject, "its server is older than this program", advice)]
    found += _control_plane(subject, control, asked=asked, answered=clock.wall())
    found += await _agents(client, subject)
    return found


def _control_plane(subject: str, control: Any, *, asked: float, answered: float) -> Iterator[Finding]:
    leader = f"server {control.leader}"
    if control.time_unix_ms:
        middle, half = (asked + answered) / 2, (answered - asked) / 2
        yield judge_clock(leader, control.time_unix_ms / 1000 - middle, half)
    if control.version:
        yield judge_version(leader, control.version, metadata.version("nstance"))
    yield from _standbys(subject, control)
    yield from _certificates(leader, control, now=answered)
    yield from _denials(leader, control)
    if control.provider_rate:
        message = f"the provider throttles: {control.provider_rate:.1f} calls per second are allowed"
        advice = "wait, or ask the provider for a higher limit; nothing fails, but changes take longer"
        yield Finding(Level.WARNING, "permission", leader, message, advice)


def _standbys(subject: str, control: Any) -> Iterator[Finding]:
    if not control.standbys:
        advice = "start a second server for this shard: without one a failover takes as long as a new server's start"
        yield Finding(Level.WARNING, "leader", subject, "it has no standby", advice)
    for standby in control.standbys:
        if standby.answered_ms > STANDBY_SILENCE_MS:
            advice = "check that the servers reach each other's election port (8991)"
            message = f"standby {standby.server} last answered {standby.answered_ms / 1000:.0f} s ago"
            yield Finding(Level.WARNING, "port", subject, message, advice)
        else:
            yield Finding(Level.OK, "leader", subject, f"standby {standby.server} answers")


def _certificates(leader: str, control: Any, *, now: float) -> Iterator[Finding]:
    for sample in control.metrics:
        if sample.name != "nstance_certificate_expiry_timestamp_seconds" or sample.value <= 0:
            continue
        kind = next(iter(sample.labels.values()), "")
        if kind == "ca":
            advice, warning = "run `nstance-admin cluster ca rotate`", EXPIRY_WARNING_DAYS * DAY_SECONDS
        else:
            advice, warning = "restart the server: it should have renewed its certificate", SERVER_EXPIRY_SECONDS
        yield judge_expiry(
            f"{kind} certificate of {leader}", expires=sample.value, now=now, warning_seconds=warning, advice=advice
        )


def _denials(leader: str, control: Any) -> Iterator[Finding]:
    """Calls that the provider or storage has denied since the server's start."""
    advice = {
        "provider": "see `nstance-admin events` for what was denied, and add it to the policy of the server's role",
        "storage": "allow the server's role to read, write, list and delete in the bucket",
    }
    for kind, text in advice.items():
        denied = sum(
            sample.value
            for sample in control.metrics
            if sample.name == f"nstance_{kind}_requests_total" and "permission_denied" in sample.labels.values()
        )
        if denied:
            message = f"{denied:.0f} calls to the {kind} were denied since its start"
            yield Finding(Level.WARNING, "permission", leader, message, text)


async def _agents(client: Client, subject: str) -> list[Finding]:
    """Versions of a sample of connected agents."""
    connected = [each.instance_id for each in await instances.list_instances(client) if each.connected]
    statuses = await asyncio.gather(
        *(client.call("GetInstanceStatus", instance_id=id) for id in connected[:MAX_AGENTS]), return_exceptions=True
    )
    versions: Mapping[str, int] = Counter(
        each.report.version for each in statuses if not isinstance(each, BaseException) and each.report.version
    )
    if not versions:
        return []
    own = metadata.version("nstance")
    listed = ", ".join(f"{count}× {version}" for version, count in sorted(versions.items()))
    if set(versions) == {own}:
        return [Finding(Level.OK, "version", subject, f"agents run {own}")]
    advice = "replace instances with an image or a URL of the current agent"
    return [Finding(Level.WARNING, "version", subject, f"agents run {listed}; this program is {own}", advice)]
