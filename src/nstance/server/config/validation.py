"""`nstance-server --validate`: all faults of a configuration, and what is probably a mistake in it.

A fault means that no server would take the configuration; a warning does not, unless `--strict` asks for it. Where the
bucket is named too, warnings know what the API overrides; with `--online` secrets and objects are looked for as well. An
error while looking is reported as an error, never as an absence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath

from nstance import gotemplate
from nstance.clock import AnchoredClock, Rng
from nstance.config import jsonc, load, storage_keys
from nstance.config import warnings as warning
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import Problem
from nstance.config.findings import Findings
from nstance.config.jsonc import Path
from nstance.config.resolve import Resolved
from nstance.config.settings import Settings
from nstance.config.workload import SecretFile, StorageFile
from nstance.model.ids import GroupKey
from nstance.objects import errors as storage
from nstance.objects import keys
from nstance.objects.port import Key, ObjectStore
from nstance.secretstore import errors as secrets
from nstance.secretstore.port import SecretStore
from nstance.server.config import configuration as configurations
from nstance.server.config.configuration import NoConfigurationError
from nstance.server.errors import FatalError
from nstance.server.options import Options
from nstance.server.wiring import Server

LOOK_SECONDS = 30.0  # for one secret or object
AT_ONCE = 16

Groups = Mapping[GroupKey, Resolved]


async def validate(options: Options, clock: AnchoredClock, rng: Rng) -> tuple[Problem, ...]:
    """The warnings. Raises NoConfiguration with all faults, storage errors, Fatal."""
    if options.validate and not options.names_bucket:
        body = _read(options.validate)
        settings = configurations.parse(body, shard=options.shard, source=options.validate)
        groups = configurations.resolve(settings, DynamicGroups())
        return load.locate(body, warning.find(settings, groups, DynamicGroups()), source=options.validate)
    server = Server(options, clock=clock, rng=rng)
    store = server.open_store()
    try:
        return await _with_bucket(server, store)
    finally:
        await store.close()


async def _with_bucket(server: Server, store: ObjectStore) -> tuple[Problem, ...]:
    options = server.options
    source = options.validate or storage_keys.config(server.shard)
    if options.validate:
        body = _read(options.validate)
    else:
        body = await _stored(server, store)
    settings = configurations.parse(body, shard=server.shard, source=source)
    dynamic, unread = DynamicGroups(), ""
    try:
        dynamic = await configurations.read_groups(store, server.shard)
    except (storage.StorageError, TimeoutError) as problem:
        if not options.validate or options.online:
            raise
        unread = f"failed to read what the API overrides: {problem or 'timed out'}"
    groups = configurations.resolve(settings, dynamic)
    findings = warning.find(settings, groups, dynamic)
    if unread:
        findings.add(("groups",), unread)
    if options.online:
        cluster_store = server.cluster_store(store, settings)
        try:
            await find_missing(settings, groups, findings, store, server.trust(cluster_store, settings).secret_store())
        finally:
            if cluster_store is not store:
                await cluster_store.close()
    return load.locate(body, findings, source=source)


async def _stored(server: Server, store: ObjectStore) -> bytes:
    key = storage_keys.config(server.shard)
    try:
        async with asyncio.timeout(configurations.READ_TIMEOUT):
            return (await store.get(key)).body
    except storage.NotFoundError:
        raise NoConfigurationError(f"there is no configuration at {key}") from None


async def find_missing(
    settings: Settings, groups: Groups, findings: Findings, store: ObjectStore, secret_store: SecretStore
) -> None:
    """Secrets and objects that files of instances are made from, and that are not there."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def look(what: str, get: Callable[[], Awaitable[object]]) -> str:
        try:
            async with turn, asyncio.timeout(LOOK_SECONDS):
                await get()
            return ""
        except (secrets.NotFoundError, storage.NotFoundError):
            return f"there is no {what}"
        except (secrets.SecretError, storage.StorageError, TimeoutError) as problem:
            return f"failed to look for the {what}: {problem or 'timed out'}"

    places = dict.fromkeys(_needed(settings, groups))
    needed = list(dict.fromkeys((kind, name) for _, kind, name in places))
    told = await asyncio.gather(
        *(
            look(
                f"{kind} {name}",
                partial(secret_store.get, name) if kind == "secret" else partial(store.head, Key(name)),
            )
            for kind, name in needed
        )
    )
    problems = dict(zip(needed, told, strict=True))
    for path, kind, name in places:
        if problem := problems[kind, name]:
            findings.add(path, problem)


def _needed(settings: Settings, groups: Groups) -> Iterator[tuple[Path, str, str]]:
    """Where each secret and object is named. Objects whose key depends on the instance are left out."""
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
