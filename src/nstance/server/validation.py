"""`nstance-server --validate`: all errors of a configuration, and warnings about what is probably a mistake.

With an error no server accepts the configuration; a warning is one only with `--strict`. If the bucket is named, warnings
include what the API overrides; with `--online` secrets, objects and the cloud are looked at too. A lookup that fails is
reported as a failure, never as an absence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath

from nstance import gotemplate
from nstance.clock import Clock, Rng
from nstance.config import jsonc, load, storage_keys
from nstance.config.checks import warnings as warning
from nstance.config.checks.problems import ProblemCollector
from nstance.config.checks.provider_rules import RULES
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import Problem
from nstance.config.jsonc import Path
from nstance.config.model.settings import Settings
from nstance.config.model.workload import SecretFile, StorageFile
from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey, ShardId
from nstance.objects import errors as storage
from nstance.objects import keys
from nstance.objects.port import Key, ObjectStore
from nstance.providers.member_lists.webhooks import Webhooks
from nstance.providers.port import Instances
from nstance.secretstore import errors as secrets
from nstance.secretstore.port import SecretStore
from nstance.server import cloud_checks, configured_provider, stores
from nstance.server.config import configuration as configurations
from nstance.server.config.configuration import NoConfigurationError
from nstance.server.errors import FatalError
from nstance.server.identity.trust import Trust
from nstance.server.options import Options

LOOKUP_TIMEOUT_SECONDS = 30.0
CONCURRENT_LOOKUPS = 16

Groups = Mapping[GroupKey, Resolved]


async def validate(options: Options, clock: Clock, rng: Rng) -> tuple[Problem, ...]:
    """Returns the warnings. Raises NoConfigurationError with all errors, storage errors and FatalError."""
    if options.validate and not options.names_bucket:
        body = _read(options.validate)
        settings = configurations.parse(body, shard=options.shard, source=options.validate)
        groups = configurations.resolve(settings, DynamicGroups())
        return load.locate(body, warning.find_warnings(settings, groups, DynamicGroups()), source=options.validate)
    assert options.shard is not None
    store = stores.open_shard_store(options)
    try:
        return await _with_bucket(options, options.shard, store, clock, rng)
    finally:
        await store.close()


async def _with_bucket(
    options: Options, shard: ShardId, store: ObjectStore, clock: Clock, rng: Rng
) -> tuple[Problem, ...]:
    source = options.validate or storage_keys.config(shard)
    body = _read(options.validate) if options.validate else await _stored(shard, store)
    settings = configurations.parse(body, shard=shard, source=source)
    dynamic, unread = DynamicGroups(), ""
    try:
        dynamic = await configurations.read_groups(store, shard)
    except (storage.StorageError, TimeoutError) as problem:
        if not options.validate or options.online:
            raise
        unread = f"failed to read what the API overrides: {problem or 'timed out'}"
    groups = configurations.resolve(settings, dynamic)
    findings = warning.find_warnings(settings, groups, dynamic)
    if unread:
        findings.add(("groups",), unread)
    if options.online:
        cluster_store = stores.open_cluster_store(options, settings, store)
        trust = Trust(cluster_store, settings, options, clock=clock, rng=rng)
        try:
            secret_store = await trust.secret_store()
            await find_missing(settings, groups, findings, store, secret_store)
            await _check_webhooks(settings, findings, clock, secret_store)
            provider = _open_provider(options, shard, settings, clock, secret_store)
            if provider is not None:
                await _check_cloud(settings, groups, findings, provider)
        finally:
            await trust.close()
            if cluster_store is not store:
                await cluster_store.close()
    return load.locate(body, findings, source=source)


def _open_provider(
    options: Options, shard: ShardId, settings: Settings, clock: Clock, secret_store: SecretStore
) -> Instances | None:
    """A local provider has nothing to ask, and to open it may create directories."""
    if RULES[settings.shard.infra.provider].local:
        return None
    return configured_provider.open_configured(settings, shard, options, clock, secret_store)


async def _check_webhooks(
    settings: Settings, findings: ProblemCollector, clock: Clock, secret_store: SecretStore
) -> None:
    webhooks = Webhooks(partial(configured_provider.read_secret, secret_store), clock)
    try:
        await cloud_checks.find_webhook_faults(settings, findings, webhooks)
    finally:
        await webhooks.close()


async def _check_cloud(settings: Settings, groups: Groups, findings: ProblemCollector, provider: Instances) -> None:
    try:
        await cloud_checks.find_cloud_faults(settings, groups, findings, provider)
    finally:
        await provider.close()


async def _stored(shard: ShardId, store: ObjectStore) -> bytes:
    key = storage_keys.config(shard)
    try:
        async with asyncio.timeout(configurations.READ_TIMEOUT_SECONDS):
            return (await store.get(key)).body
    except storage.NotFoundError:
        raise NoConfigurationError(f"there is no configuration at {key}") from None


async def find_missing(
    settings: Settings, groups: Groups, findings: ProblemCollector, store: ObjectStore, secret_store: SecretStore
) -> None:
    """Add secrets and objects that files of instances need and that do not exist."""
    slots = asyncio.Semaphore(CONCURRENT_LOOKUPS)

    async def look_up(what: str, get: Callable[[], Awaitable[object]]) -> str:
        try:
            async with slots, asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
                await get()
            return ""
        except (secrets.NotFoundError, storage.NotFoundError):
            return f"there is no {what}"
        except (secrets.SecretError, storage.StorageError, TimeoutError) as problem:
            return f"failed to look for the {what}: {problem or 'timed out'}"

    places = dict.fromkeys(_needed(settings, groups))
    needed = list(dict.fromkeys((kind, name) for _, kind, name in places))
    found = await asyncio.gather(
        *(
            look_up(
                f"{kind} {name}",
                partial(secret_store.get, name) if kind == "secret" else partial(store.head, Key(name)),
            )
            for kind, name in needed
        )
    )
    problems = dict(zip(needed, found, strict=True))
    for path, kind, name in places:
        if problem := problems[kind, name]:
            findings.add(path, problem)


def _needed(settings: Settings, groups: Groups) -> Iterator[tuple[Path, str, str]]:
    """Where each secret and object is named, without objects whose key depends on the instance."""
    for resolved in groups.values():
        for file, spec in resolved.files.items():
            path: Path = ("templates", resolved.group.template, "files", file, "source")
            if isinstance(spec, SecretFile):
                yield path, "secret", spec.source
            elif isinstance(spec, StorageFile) and (key := _key(spec.source, warning.sample(settings, resolved))):
                yield path, "object", key


def _key(source: str, values: Mapping[str, object]) -> str:
    if "{{" not in source:
        return source
    try:
        template = gotemplate.parse(source)
        if any(path[:1] != ("Vars",) for path in template.fields()):
            return ""
        key = template.render(values)
        return key if keys.is_valid(key) else ""
    except gotemplate.TemplateError:
        return ""


def _read(path: str) -> bytes:
    try:
        with FilePath(path).open("rb") as file:
            return file.read(jsonc.MAX_BYTES + 1)  # one more shows that it is too large
    except OSError as problem:
        raise FatalError(f"{path} cannot be read: {problem.strerror or problem}") from problem
