"""What a person should look at, from the state of shards and groups and their newest events. Pure."""

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nstance.admin.shard.records import Record, exhausted_offer_line
from nstance.admin.shard.shapes import timestamp_ms
from nstance.model.counts import count

CA_SECONDS = 30 * 86400.0
CERTIFICATE_SECONDS = 86400.0
RECENT_SECONDS = 300.0
LAG_SECONDS = 1.0
STANDBY_SILENT_MS = 5_000

CONNECTING = "not connected yet"  # the error of a shard that was not asked before
LOSSES = frozenset({"spot-termination", "gone", "unhealthy", "shutdown"})  # reasons that nobody asked for

BAD, WARNING = "bad", "warning"


def find(
    shards: Sequence[Record], groups: Sequence[Record], events: Iterable[Record] = (), *, now: float
) -> list[Record]:
    """The worst first."""
    found = [alarm for shard in shards for alarm in _of_shard(shard, now)]
    found += [alarm for group in groups for alarm in _of_group(group)]
    found += interruptions(events, now=now)
    return sorted(found, key=lambda alarm: (alarm["level"] != BAD, alarm["shard"], alarm["group"] or ""))


def interruptions(events: Iterable[Record], *, now: float) -> list[Record]:
    """Groups that lost instances lately: also those that have their size again, because the next ones may follow."""
    since = timestamp_ms(int((now - RECENT_SECONDS) * 1000)) or ""
    lost: dict[tuple[str, str], dict[str, str]] = {}
    for event in events:
        if event["time"] >= since and event["reason"] in LOSSES and event["instance_id"]:
            lost.setdefault((event["shard"], event["group"]), {})[event["instance_id"]] = event["reason"]
    return [_interruption(*key, Counter(reasons.values())) for key, reasons in sorted(lost.items())]


def _interruption(shard: str, group: str, reasons: Counter[str]) -> Record:
    why = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    message = f"{count(reasons.total(), 'instance')} lost within the last five minutes: {why}"
    return _alarm(WARNING, shard, "interruptions", message, group)


def _alarm(level: str, shard: str, kind: str, message: str, group: str | None = None) -> Record:
    return {"level": level, "kind": kind, "shard": shard, "group": group, "message": message}


def _of_shard(shard: Record, now: float) -> Iterator[Record]:
    name, control_plane, config = shard["shard"], shard["control_plane"], shard["config"]
    if not shard["reachable"] and shard["error"] != CONNECTING:
        yield _alarm(BAD, name, "unreachable", f"the shard does not answer: {shard['error']}")
    for problem in config["errors"] if config is not None else ():
        held = "group held" in problem
        yield _alarm(WARNING if held else BAD, name, "config", problem if held else f"config rejected: {problem}")
    if shard["unknown_vms"]:
        yield _alarm(
            WARNING, name, "unknown-vms", f"{shard['unknown_vms']} unknown VMs are held: adopt or release them"
        )
    left = (_seconds(shard["identity_expires"]) or now) - now
    if left < CERTIFICATE_SECONDS:
        yield _alarm(BAD, name, "certificate", f"the certificate of this program {_expires(left)}")
    if control_plane is not None:
        yield from _of_control_plane(name, control_plane, now)


def _of_control_plane(name: str, control_plane: Record, now: float) -> Iterator[Record]:
    for each in control_plane["alarms"]:
        yield _alarm(BAD, name, each["kind"], each["message"])
    if (failed := _seconds(control_plane["storage_failed"])) is not None and now - failed < RECENT_SECONDS:
        yield _alarm(BAD, name, "storage", "requests to object storage failed within the last five minutes")
    if rate := control_plane["provider_rate"]:
        yield _alarm(WARNING, name, "throttled", f"the provider throttles calls: {rate:.2g} per second are sent")
    for standby in control_plane["standbys"]:
        if standby["answered_ms"] > STANDBY_SILENT_MS:
            seconds = standby["answered_ms"] // 1000
            yield _alarm(WARNING, name, "standby", f"standby {standby['server']} has not answered for {seconds} s")
    for sample in control_plane["metrics"]:
        if sample["name"] == "nstance_event_loop_lag_seconds" and sample["value"] > LAG_SECONDS:
            yield _alarm(WARNING, name, "lag", f"the leader's event loop was late by {sample['value']:.1f} s")
        if sample["name"] == "nstance_certificate_expiry_timestamp_seconds" and sample["value"]:
            kind, left = sample["labels"].get("kind", ""), sample["value"] - now
            if left < (CA_SECONDS if kind == "ca" else CERTIFICATE_SECONDS):
                what = "the newest CA" if kind == "ca" else "the leader's certificate"
                yield _alarm(
                    BAD if left < CERTIFICATE_SECONDS else WARNING, name, "certificate", f"{what} {_expires(left)}"
                )


def _of_group(group: Record) -> Iterator[Record]:
    shard, name = group["shard"], group["group"]
    for reason in group["blocked"]:
        yield _alarm(BAD, shard, "blocked", f"blocked: {reason}", name)
    if group["last_error"] and group["last_error"] not in group["blocked"]:
        yield _alarm(BAD, shard, "error", group["last_error"], name)
    if group["exhausted_offers"] and not group["blocked"]:
        first, *more = group["exhausted_offers"]
        what = "server errors" if first["server_error"] else "no capacity"
        rest = f"; {count(len(more), 'more offer')}" if more else ""
        yield _alarm(WARNING, shard, "capacity", f"{what}: {exhausted_offer_line(first)}{rest}", name)
    rollout = group["rollout"]
    if rollout is not None and rollout["outcome"] in ("halted", "paused"):
        level = BAD if rollout["outcome"] == "halted" else WARNING
        message = f": {rollout['message']}" if rollout["message"] else ""
        yield _alarm(level, shard, "rollout", f"rollout {rollout['outcome']}{message}", name)
    if group["paused"]:
        yield _alarm(WARNING, shard, "paused", "paused: no instance is created, replaced or deleted", name)


def _expires(left: float) -> str:
    if left <= 0:
        return "has expired"
    return f"expires in {left / 86400:.0f} days" if left > 2 * 86400 else f"expires in {left / 3600:.0f} hours"


def _seconds(time: str | None) -> float | None:
    return datetime.datetime.fromisoformat(time).timestamp() if time else None
