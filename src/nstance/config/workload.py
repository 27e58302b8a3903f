"""What instances are made of: images, load balancers, certificates, files, userdata, templates and groups."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
    model_validator,
)

from nstance.config import durations, fields, storage_keys
from nstance.config.errors import quoted
from nstance.config.fields import Block, kind_of, wrong
from nstance.config.readiness import Checks

MAX_FILES = 256  # what an agent takes as one set
NONCE_KEY = "registration-nonce.key"  # the secret that signs nonces; it never becomes a file
CA = "ca"  # the certificate template that shapes the cluster's own authority
CA_LIFE = 10 * 365 * 86_400.0

CertificateKind = Literal["server", "client"]


class Tenant(Block):
    """Reserved for limits."""


class LoadBalancer(Block):
    provider: Literal["aws", "gcp", "memory"]
    target_group_arns: tuple[fields.Filled, ...] = ()
    instance_group_name: fields.Text = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.provider == "aws" and (not self.target_group_arns or self.instance_group_name):
            raise wrong("expected target_group_arns, and no instance_group_name, for the provider aws")
        if self.provider == "gcp" and (not self.instance_group_name or self.target_group_arns):
            raise wrong("expected an instance_group_name, and no target_group_arns, for the provider gcp")
        if self.provider == "memory" and (self.target_group_arns or self.instance_group_name):
            raise wrong("expected the provider memory alone: there the balancer's name says which one it is")
        return self


class ImageFilter(Block):
    name: fields.Filled
    values: Annotated[tuple[fields.Filled, ...], Field(min_length=1)]


class Image(Block):
    """A question to the provider, asked anew from time to time."""

    provider: Literal["aws", "gcp", "proxmox", "memory"] | None = None
    filters: tuple[ImageFilter, ...] = ()
    owners: tuple[fields.Filled, ...] = ()
    sort: fields.Text = ""
    order: Literal["asc", "desc"] = "desc"
    fallback: fields.Text = ""

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if not self.filters and not self.fallback:
            raise wrong("expected filters or a fallback, found neither")
        return self


def _kinds(value: object) -> object:
    given: list[object] = value if isinstance(value, list) else [value]
    if not given or len(given) > 2 or any(given.count(each) > 1 or each not in ("server", "client") for each in given):
        raise wrong(f'expected "server", "client" or a list of both, found {kind_of(value)}')
    return tuple(given)


class Certificate(Block):
    """What a certificate says. Its strings are templates; what renders empty is left out."""

    kind: Annotated[
        tuple[CertificateKind, ...],
        BeforeValidator(_kinds),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["server", "client"]},
                    {"type": "array", "items": {"enum": ["server", "client"]}, "minItems": 1, "uniqueItems": True},
                ]
            }
        ),
    ] = ()
    cn: fields.Text = ""
    organization: tuple[fields.Text, ...] = ()
    country: tuple[fields.Text, ...] = ()
    province: tuple[fields.Text, ...] = ()
    locality: tuple[fields.Text, ...] = ()
    street: tuple[fields.Text, ...] = ()
    postalCode: tuple[fields.Text, ...] = ()
    dns: tuple[fields.Text, ...] = ()
    ip: tuple[fields.Text, ...] = ()
    uri: tuple[fields.Text, ...] = ()
    ttl: fields.Life = 8760 * 3600.0


class CertificateKey(Block):
    source: Literal["agent"]
    name: fields.PublicKeyName


class CertificateFile(Block):
    kind: Literal["certificate"]
    template: fields.Filled
    key: CertificateKey


def _secret(value: str) -> str:
    if value == NONCE_KEY:
        raise wrong(f"expected any secret but {quoted(value)}: who has it can register as any instance")
    return value


class SecretFile(Block):
    kind: Literal["secret"]
    source: Annotated[fields.SecretName, BeforeValidator(_secret)]


def _object(value: str) -> str:
    """As far as it can be seen before it is rendered."""
    if storage_keys.is_ours(value) or value.startswith("/") or ".." in value.split("/"):
        raise wrong(
            f"expected an object that is not Nstance's own (not below cluster/ or shard/), found {quoted(value)}"
        )
    return value


class StorageFile(Block):
    kind: Literal["storage"]
    source: Annotated[fields.Filled, AfterValidator(_object)]


class EnvFile(Block):
    kind: Literal["env"]
    template: Mapping[fields.EnvironmentName, fields.Text]


class JsonFile(Block):
    kind: Literal["json"]
    template: Mapping[str, object]


class StringFile(Block):
    kind: Literal["string"]
    template: str


FileSpec = CertificateFile | SecretFile | StorageFile | EnvFile | JsonFile | StringFile
FILE_KINDS = ("certificate", "secret", "storage", "env", "json", "string")


def _distinct(files: object) -> object:
    if isinstance(files, dict):
        if len(files) > MAX_FILES:
            raise wrong(f"expected at most {MAX_FILES} files, found {len(files):,}")
        folded: dict[str, str] = {}
        for name in files:
            other = folded.setdefault(str(name).casefold(), name)
            if other != name:
                raise wrong(f"expected names that differ by more than case, found {quoted(other)} and {quoted(name)}")
    return files


class Userdata(Block):
    """What a VM runs at its first start. Inline content is a template; the text behind a URL is one too."""

    source: Literal["inline", "url"] = "inline"
    encoding: Literal["plain", "base64", "gzip", "base64+gzip"] = "plain"
    content: str

    @model_validator(mode="after")
    def _has_a_web_address(self) -> Self:
        if self.source == "url" and not self.content.startswith(("https://", "http://")):
            raise wrong(f"expected a URL that starts with https:// or http://, found {quoted(self.content)}")
        return self


class Defaults(Block):
    args: fields.Args = Field(default_factory=dict)
    vars: fields.Vars = Field(default_factory=dict)
    userdata: Userdata | None = None


class Template(Block):
    kind: fields.Kind
    arch: Literal["amd64", "arm64"] = "amd64"
    files: Annotated[
        Mapping[fields.FileName, Annotated[FileSpec, Field(discriminator="kind")]], BeforeValidator(_distinct)
    ] = Field(default_factory=dict)
    args: fields.Args = Field(default_factory=dict)
    vars: fields.Vars = Field(default_factory=dict)
    userdata: Userdata | None = None
    size: fields.Count | None = None
    instance_type: fields.Text | None = None
    subnet_pool: fields.Text | None = None
    registration_timeout: fields.Period | None = Field(default=None, description="overrides the shard's")
    checks: Checks = Checks.model_validate({})
    ready_timeout: fields.Period = Field(
        default=600.0, description="an instance that is not ready so long after it registered is replaced"
    )


WAIT: Literal["wait"] = "wait"
STOP: Literal["stop"] = "stop"


def _pause(value: object) -> object:
    """A duration, or one of two words."""
    if value in (WAIT, STOP):
        return value
    try:
        if isinstance(value, str):
            return durations.parse(value)
    except ValueError:
        pass
    raise wrong(f'expected a duration, "{WAIT}" or "{STOP}", found {quoted(str(value))}')


def _written_pause(value: object, info: SerializationInfo) -> object:
    return durations.format(value) if isinstance(value, float) and info.context == fields.AS_WRITTEN else value


Pause = Annotated[
    float | Literal["wait", "stop"],
    BeforeValidator(_pause),
    PlainSerializer(_written_pause),
    WithJsonSchema({"type": "string", "examples": [WAIT, STOP, "10m"]}),
]


class Update(Block):
    """How instances are replaced when the group's template or arguments change."""

    max_surge: fields.Count = Field(default=1, description="VMs that may exist above the size, draining ones included")
    max_unavailable: fields.Count = Field(default=0, description="ready instances that may be missing")
    order: Literal["parallel", "serial"] = Field(default="parallel", description="serial: one instance after the other")
    settle: fields.Duration = Field(
        default=0.0, description="serial only: how long a new instance must be ready before the next one is replaced"
    )
    canary: fields.Count = Field(default=0, description="instances that are replaced before the rollout pauses")
    pause_after_canary: Pause = Field(
        default=WAIT, description="go on after this time; wait: for `group resume-rollout`; stop: halt there"
    )
    max_failures: Annotated[fields.Count, Field(ge=1)] = Field(
        default=2, description="new instances that may fail to become ready before the rollout halts"
    )
    on_failure: Literal["halt", "rollback"] = Field(
        default="halt", description="rollback: return to the last revision that was complete"
    )

    @model_validator(mode="after")
    def _allows_something(self) -> Self:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise wrong("expected max_surge or max_unavailable above 0: with both 0 nothing could ever be replaced")
        if self.settle and self.order != "serial":
            raise wrong('expected order "serial" beside settle: instances that are replaced side by side do not wait')
        if self.pause_after_canary != WAIT and not self.canary:
            raise wrong("expected canary above 0 beside pause_after_canary")
        return self


class GroupConfig(Block):
    """A group as it is written: what is None is decided by a layer below."""

    template: fields.Filled
    size: fields.Count | None = None
    instance_type: fields.Text | None = None
    subnet_pool: fields.Text | None = None
    vars: fields.Vars = Field(default_factory=dict)
    args: fields.Args = Field(default_factory=dict)
    drain_timeout: fields.Duration | None = None
    load_balancers: tuple[fields.Text, ...] | None = None
    update: Update | None = None
