"""Renders a group's templates for one instance: create requests, files and certificate requests.

Rendering is a function of the configuration and the record, so a create request can be repeated byte by byte; its hash is
in the intent. Secrets are not read here.
"""

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nstance import gotemplate
from nstance.config import hashes, storage_keys
from nstance.config.errors import quoted
from nstance.config.model.agent import ARCH_PLACEHOLDER
from nstance.config.model.cluster import ClusterConfig
from nstance.config.model.settings import Settings
from nstance.config.model.workload import Certificate, EnvFile, JsonFile, StringFile, Userdata
from nstance.config.resolve import Resolved
from nstance.model import ids
from nstance.model.instance import Instance
from nstance.objects import keys
from nstance.pki import ca, fields
from nstance.providers.port import CreateRequest

MAX_USERDATA_BYTES = 1 << 20
AGENT_SCRIPT = Path(__file__).with_name("agent.sh").read_text()
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # as `uname` says it


class RenderError(Exception):
    """A template cannot be rendered, or renders to something invalid. The message names it."""


class NotFetchedError(RenderError):
    """Something that the template uses was not fetched yet. A retry may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderContext:
    """What templates can use that is the same for all instances of a shard."""

    settings: Settings
    shard: ids.ShardId
    ca_bundle: str
    registration_addr: str
    agent_addr: str
    operator_addr: str
    images: Mapping[str, str | None]  # None: not known yet
    agent_urls: Mapping[str, str] = field(default_factory=dict)  # signed ones, by object


def shared(context: RenderContext) -> tuple[object, ...]:
    """What the files of all instances depend on, in any group. Images are not part of it: a new one changes no files."""
    return context.settings.cluster, context.settings.shard.infra, context.ca_bundle


class Values(dict[str, object]):
    """What a template can use, and the paths that one printed although they are not set."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.missing: dict[str, None] = {}


def data(context: RenderContext, resolved: Resolved, instance: Instance, *, nonce: str | None = None) -> Values:
    infra = context.settings.shard.infra
    values: dict[str, object] = {
        "Cluster": {"ID": context.settings.cluster.id, "CACert": context.ca_bundle},
        "Server": {
            "Shard": context.shard,
            "RegistrationAddr": context.registration_addr,
            "AgentAddr": context.agent_addr,
            "OperatorAddr": context.operator_addr,
        },
        "Provider": {"Kind": infra.provider, "Region": infra.region, "Zone": infra.zone},
        "Instance": {
            "ID": instance.id,
            "Kind": ids.kind_of(instance.id),
            "Arch": resolved.arch,
            "Type": instance.instance_type,
            "Hostname": instance.hostname or instance.id,
            "FQDN": instance.hostname or instance.id,
            "IP4": instance.ip4,
            "IP6": instance.ip6,
        },
        "Vars": dict(resolved.vars) | dict(instance.vars),
        "Image": dict(context.images),
    }
    if nonce is not None:
        values["Nonce"] = nonce
        values["Agent"] = _agent(context, resolved, {**resolved.vars, **instance.vars})
    return Values(values)


def _agent(context: RenderContext, resolved: Resolved, vars: Mapping[str, str]) -> dict[str, str]:
    """Where this instance gets the agent from. Vars of the group come first, so that one group can try another agent."""
    source = context.settings.agent
    if url := vars.get("AgentURL", ""):
        url, checksum = url.replace(ARCH_PLACEHOLDER, _MACHINES[resolved.arch]), vars.get("AgentSHA256", "")
    else:
        place = source.place_for(resolved.arch)
        url = context.agent_urls.get(place, "") if source.object else place
        checksum = source.checksum_for(resolved.arch)
    return {"URL": url, "SHA256": checksum, "Version": source.version}


def uses_agent(spec: Userdata, template: str) -> bool:
    """Whether this userdata downloads the agent."""
    return spec.base == "agent" or any(path[:1] in ((), ("Agent",)) for path in _paths(template))


def unsigned_agent(context: RenderContext, resolved: Resolved, template: str) -> str:
    """The object that this group's userdata downloads and that has no signed URL yet; empty if there is none."""
    source, spec = context.settings.agent, resolved.userdata
    if spec is None or not source.object or resolved.vars.get("AgentURL") or not uses_agent(spec, template):
        return ""
    place = source.place_for(resolved.arch)
    return "" if place in context.agent_urls else place


def request(
    context: RenderContext,
    resolved: Resolved,
    instance: Instance,
    *,
    nonce: str,
    userdata: bytes | None,
    on_missing: Callable[[str], None] = lambda path: None,
) -> CreateRequest:
    """`userdata`: the template; None if the provider uses none. `on_missing` is called for each path that a template
    prints although it is not set."""
    if userdata is not None and (place := unsigned_agent(context, resolved, userdata.decode(errors="replace"))):
        raise NotFetchedError(f"the URL of the agent at {place} is not signed yet")
    values = data(context, resolved, instance, nonce=nonce)
    made = CreateRequest(
        id=instance.id,
        tenant=instance.tenant,
        group=instance.group,
        kind=ids.kind_of(instance.id),
        template=instance.template,
        created=instance.created,
        market=instance.market,
        instance_type=instance.instance_type,
        arch=resolved.arch,
        subnet=instance.subnet,
        args=render_value(resolved.args, values, "args"),  # type: ignore[arg-type]
        userdata=_userdata(resolved.userdata, userdata, values),
        unsigned_userdata=_unsigned(context, resolved, instance, nonce=nonce, userdata=userdata),
        nonce=nonce,
        ca_certificate=context.ca_bundle,
        registration_addr=context.registration_addr,
        agent_addr=context.agent_addr,
        report_interval=context.settings.shard.health_check_interval,
    )
    for path in values.missing:
        on_missing(path)
    return made


def _unsigned(
    context: RenderContext, resolved: Resolved, instance: Instance, *, nonce: str, userdata: bytes | None
) -> bytes | None:
    """The userdata with the agent's place instead of its signed URL. None: no URL is signed."""
    if not context.settings.agent.object or userdata is None:
        return None
    unsigned = dataclasses.replace(context, agent_urls={place: place for place in context.agent_urls})
    return _userdata(resolved.userdata, userdata, data(unsigned, resolved, instance, nonce=nonce))


def request_hash(made: CreateRequest) -> str:
    """Hash of all that is sent to the provider; the nonce enters only through its own hash.

    Signatures are left out: a create whose outcome is unknown is repeated, and must not end because a URL was signed again.
    """
    userdata = made.userdata if made.unsigned_userdata is None else made.unsigned_userdata
    content = {
        "id": made.id,
        "tenant": made.tenant,
        "group": made.group,
        "template": made.template,
        "type": made.instance_type,
        "arch": made.arch,
        "subnet": made.subnet,
        "args": made.args,
        "userdata": hashlib.sha256(userdata).hexdigest(),
        "nonce": hashlib.sha256(made.nonce.encode()).hexdigest(),
    }
    if made.market:  # an intent of an older version has none
        content["market"] = made.market
    return hashes.digest(content)


def text(template: str, values: Mapping[str, object], what: str) -> str:
    images = values.get("Image")
    if isinstance(images, Mapping) and (lacking := unknown_images([template], images)):
        raise NotFetchedError(f"{what}: the image {lacking[0]} is not known yet")
    missing = values.missing if isinstance(values, Values) else {}
    try:
        return gotemplate.parse(template).render(values, missing=lambda path: missing.update({path: None}))
    except gotemplate.TemplateError as error:
        raise RenderError(f"{what}: {error}") from error


def unknown_images(texts: Iterable[str], images: Mapping[str, str | None]) -> list[str]:
    """Images that these templates may print and that are not known yet."""
    unknown = [name for name, id in images.items() if id is None]
    used = {path[:2] for text in texts for path in _paths(text)} if unknown else set()
    # A path that ends before the image name may lead to any of them.
    return sorted(name for name in unknown if used & {(), ("Image",), ("Image", name)})


def undefined_images(texts: Iterable[str], images: Iterable[str]) -> list[str]:
    """Images that these templates print and that are not configured."""
    used = {path[1] for text in texts for path in _paths(text) if path[:1] == ("Image",) and len(path) > 1}
    return sorted(used - set(images))


def _paths(text: str) -> frozenset[tuple[str, ...]]:
    if "{{" not in text:
        return frozenset()
    try:
        return gotemplate.parse(text).fields()
    except gotemplate.TemplateError:
        return frozenset()  # rendering reports it


def texts(value: object) -> Iterator[str]:
    """All strings of a JSON value."""
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from texts(each)
        case list() | tuple():
            for each in value:
                yield from texts(each)
        case _:
            pass


def render_value(value: object, values: Mapping[str, object], what: str) -> object:
    """All templates in a JSON value, rendered. Raises RenderError."""
    match value:
        case str():
            return text(value, values, what) if "{{" in value else value
        case Mapping():
            return {key: render_value(each, values, f"{what}.{key}") for key, each in value.items()}
        case list() | tuple():
            return [render_value(each, values, f"{what}[{index}]") for index, each in enumerate(value)]
        case _:
            return value


def _userdata(spec: Userdata | None, fetched: bytes | None, values: Mapping[str, object]) -> bytes:
    if spec is None or fetched is None:
        return b""
    try:
        template = fetched.decode()
    except UnicodeDecodeError as error:
        raise RenderError(f"userdata: expected text in UTF-8, found other bytes at {error.start}") from error
    if spec.base == "agent":
        template = on_agent_base(template)
    body = text(template, values, "userdata").encode()
    if spec.encoding in ("gzip", "base64+gzip"):
        body = gzip.compress(body, mtime=0)
    if spec.encoding in ("base64", "base64+gzip"):
        body = base64.b64encode(body)
    if len(body) > MAX_USERDATA_BYTES:
        raise RenderError(f"userdata: expected at most {MAX_USERDATA_BYTES} bytes, found {len(body)}")
    return body


def on_agent_base(script: str) -> str:
    """A shell script that first sets up the agent. Raises RenderError."""
    first, _, rest = script.partition("\n")
    if not first.startswith("#"):
        return AGENT_SCRIPT + script
    if not re.fullmatch(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da|k|z)?sh(\s.*)?", first.rstrip()):
        if first.startswith(("#!", "#cloud-", "#include", "#part-", "#upstart")):
            raise RenderError(f"userdata: expected a shell script after the base agent, found {quoted(first)}")
        return AGENT_SCRIPT + script
    return first + "\n" + AGENT_SCRIPT.partition("\n")[2] + rest


def env_file(spec: EnvFile, values: Mapping[str, object]) -> bytes:
    """In systemd's format: one quoted assignment a line. A value cannot break out of its line."""
    lines = []
    for key, template in spec.template.items():
        value = text(template, values, key)
        if any(ord(c) < 32 and c != "\t" for c in value) or "\x7f" in value:
            raise RenderError(
                f"{key}: expected a value without control characters and line breaks, which env files cannot hold"
            )
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{key}="{escaped}"\n')
    return "".join(lines).encode()


def json_file(spec: JsonFile, values: Mapping[str, object]) -> bytes:
    return (json.dumps(render_value(spec.template, values, "template"), indent=2, ensure_ascii=False) + "\n").encode()


def string_file(spec: StringFile, values: Mapping[str, object]) -> bytes:
    return text(spec.template, values, "template").encode()


def object_key(template: str, values: Mapping[str, object], cluster: ClusterConfig) -> str:
    """The object that a file is read from. Nstance's own objects are rejected: the CA's key and secrets are among them."""
    key = text(template, values, "source")
    if not keys.is_valid(key):
        raise RenderError(f"source: expected an object's key, found {quoted(key)}")
    if storage_keys.is_ours(key, cluster=cluster.storage.prefix):
        raise RenderError(f"source: expected an object that is not Nstance's own, found {quoted(key)}")
    return key


def workload(template: Certificate, values: Mapping[str, object]) -> ca.WorkloadSpec:
    """Renders a certificate template. Values that render empty are left out."""

    def many(name: str, templates: tuple[str, ...]) -> tuple[str, ...]:
        rendered = (text(each, values, name).strip() for each in templates)
        return tuple(dict.fromkeys(each for each in rendered if each))

    return ca.WorkloadSpec(
        usages=frozenset(ca.Usage(kind) for kind in template.kind),
        subject=fields.Subject(
            cn=text(template.cn, values, "cn").strip(),
            organization=many("organization", template.organization),
            country=many("country", template.country),
            province=many("province", template.province),
            locality=many("locality", template.locality),
            street=many("street", template.street),
            postal_code=many("postalCode", template.postalCode),
        ),
        alternatives=fields.Alternatives(
            dns=many("dns", template.dns), ip=many("ip", template.ip), uri=many("uri", template.uri)
        ),
        life=template.ttl,
    )
