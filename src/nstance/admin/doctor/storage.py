"""Checks of the bucket and of what is in it: conditions, speed, clock, CA, key, and each shard's configuration and lease."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nstance.admin.cluster import shards
from nstance.admin.cluster.storage import ClusterStorage, open_storage
from nstance.admin.doctor.findings import (
    DAY_SECONDS,
    EXPIRY_WARNING_DAYS,
    Finding,
    Level,
    judge_clock,
    judge_expiry,
    judge_latency,
)
from nstance.admin.doctor.ports import check_ports
from nstance.admin.errors import CommandError
from nstance.admin.options import Target
from nstance.authority import errors as authority
from nstance.config import load, storage_keys
from nstance.config.addresses import Service
from nstance.config.errors import ConfigError
from nstance.model.ids import ShardId
from nstance.objects import errors as storage
from nstance.objects import lease, probe, settle
from nstance.objects.port import Key
from nstance.pki import ca, fields
from nstance.secretstore import errors as secrets

CALL_SECONDS = 30.0
SAMPLES = 5
RESOLUTION_SECONDS = 1.0  # of the times that stores give


async def check_storage(target: Target, *, read_only: bool) -> list[Finding]:
    found: list[Finding] = []
    async with open_storage(target) as cluster:
        name = repr(cluster.store)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                names = await shards.names(cluster.store)
            found += [await _latency(cluster, name)]
            if not read_only:
                found += await _write(cluster, name)
        except (storage.StorageError, TimeoutError) as problem:
            return [*found, _storage_failure(name, problem)]
        found += await _authority(cluster)
        for shard in names:
            found += await _shard(cluster, shard)
        if not names:
            advice = "correct --storage-bucket or --prefix, or write a configuration with `cluster config put`"
            found.append(Finding(Level.PROBLEM, "configuration", name, "there is no shard in it", advice))
    return found


def _storage_failure(name: str, problem: Exception) -> Finding:
    text = str(problem) or f"no answer within {CALL_SECONDS:.0f} s"
    if isinstance(problem, storage.PermissionDeniedError):
        advice = "allow reading, writing, listing and deleting in the bucket, or check the credentials and the region"
        return Finding(Level.PROBLEM, "permission", name, text, advice)
    return Finding(Level.PROBLEM, "storage", name, text, "check that the store can be reached from here")


async def _latency(cluster: ClusterStorage, name: str) -> Finding:
    key = cluster.places.ca_certificate
    times = []
    for _ in range(SAMPLES):
        start = cluster.clock.monotonic()
        async with asyncio.timeout(CALL_SECONDS):
            await settle.read(cluster.store, key)
        times.append(cluster.clock.monotonic() - start)
    return judge_latency(name, statistics.median(times))


async def _write(cluster: ClusterStorage, name: str) -> list[Finding]:
    """What a server does at start, and the store's clock. What it writes it removes."""
    prefix = cluster.places.prefix
    try:
        await probe.probe(cluster.store, prefix, clock=cluster.clock, rng=cluster.rng)
    except probe.UnsuitableStoreError as problem:
        fault, _, advice = str(problem).partition("; ")
        return [Finding(Level.PROBLEM, "storage", name, fault, advice)]
    found = [Finding(Level.OK, "storage", name, "of 16 writers in a race exactly one wins")]
    key = Key(f"{prefix.rstrip('/')}/doctor-{cluster.rng.bits(64):016x}")
    async with _removed(cluster, key):
        asked = cluster.clock.wall()
        await cluster.store.create(key, b"")
        answered = cluster.clock.wall()
        modified = (await cluster.store.head(key)).modified
    middle, half = (asked + answered) / 2, (answered - asked) / 2
    # Times are rounded down to a second, so half of one is missing on average.
    found.append(judge_clock(name, modified + RESOLUTION_SECONDS / 2 - middle, half + RESOLUTION_SECONDS))
    return found


@asynccontextmanager
async def _removed(cluster: ClusterStorage, key: Key) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            yield
    finally:
        async with asyncio.timeout(CALL_SECONDS):
            await settle.delete(cluster.store, key)


async def _authority(cluster: ClusterStorage) -> list[Finding]:
    places, found = cluster.places, []
    try:
        stored = await settle.read(cluster.store, places.ca_certificate)
        if stored is not None:
            certificate = ca.load_certificate(stored.body.decode("ascii", "replace"))
            found.append(
                judge_expiry(
                    f"CA {places.ca_certificate}",
                    expires=certificate.not_valid_after_utc.timestamp(),
                    now=cluster.clock.wall(),
                    warning_seconds=EXPIRY_WARNING_DAYS * DAY_SECONDS,
                    advice="run `nstance-admin cluster ca rotate`",
                )
            )
        await cluster.authority()
        found.append(Finding(Level.OK, "permission", "encryption key", f"it opens {places.sealed_ca}"))
    except fields.CertificateError as problem:
        advice = "a server of the cluster writes it again"
        found.append(Finding(Level.PROBLEM, "certificate", f"CA {places.ca_certificate}", str(problem), advice))
    except (authority.AuthorityError, secrets.SecretError, CommandError) as problem:
        message, _, advice = str(problem).partition("; ")
        advice = advice or "set the servers' encryption key (--key-provider, --key-source)"
        found.append(Finding(Level.PROBLEM, "permission", "encryption key", message, advice))
    except (storage.StorageError, TimeoutError) as problem:
        found.append(_storage_failure(repr(cluster.store), problem))
    return found


async def _shard(cluster: ClusterStorage, shard: ShardId) -> list[Finding]:
    subject = f"shard {shard}"
    try:
        stored = await settle.read(cluster.store, storage_keys.config(shard))
        held = await settle.read(cluster.store, storage_keys.lease(shard))
    except (storage.StorageError, TimeoutError) as problem:
        return [_storage_failure(subject, problem)]
    if stored is None:
        advice = "write one with `nstance-admin cluster config put`; without it no server of the shard starts"
        return [Finding(Level.PROBLEM, "configuration", subject, "it has no config.jsonc", advice)]
    try:
        settings = load.load(stored.body, shard=shard)
    except ConfigError as problem:
        advice = "correct it; running servers keep the last valid one, new ones do not start"
        text = f"config.jsonc has {len(problem.problems)} problems: {problem.problems[0]}"
        return [Finding(Level.PROBLEM, "configuration", subject, text, advice)]
    found = [Finding(Level.OK, "configuration", subject, "config.jsonc is valid")]
    if held is None:
        advice = "start a server of the shard"
        return [*found, Finding(Level.WARNING, "leader", subject, "no server has ever led it", advice)]
    try:
        current = lease.decode(held.body)
    except lease.BadLeaseError as problem:
        advice = "restore shard/…/leader.json from a backup while no server runs"
        return [*found, Finding(Level.PROBLEM, "leader", subject, str(problem), advice)]
    if current.free:
        advice = "start a server of the shard"
        message = f"nobody leads: {current.holder.server} has released the lease"
        return [*found, Finding(Level.PROBLEM, "leader", subject, message, advice)]
    found.append(Finding(Level.OK, "leader", subject, f"{current.holder.server} holds the lease"))
    bind = {service: address.port for service, address in settings.shard.bind.by_service().items()}
    return [*found, *await check_ports(shard, current.holder, offset_from=bind[Service.ELECTION], ports=bind)]
