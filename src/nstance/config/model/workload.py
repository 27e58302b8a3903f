"""Templates and groups, and what they are made of: images, certificates, files and userdata."""

import re
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

from nstance.config import durations, storage_keys
from nstance.config.errors import quoted
from nstance.config.model import scalars
from nstance.config.model.readiness import Checks
from nstance.config.model.scalars import Block, describe_type, invalid

MAX_INSTANCE_TYPES = 20
MAX_FILES = 256  # of one instance: the limit of an agent
CA_TEMPLATE = "ca"  # the template of the cluster's CA certificate
CA_LIFETIME_SECONDS = 10 * 365 * 86_400.0

QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?")

CertificateKind = Literal["server", "client"]


class Tenant(Block):
    """Has no settings yet; reserved for limits."""


class ImageFilter(Block):
    name: scalars.NonEmptyText
    values: Annotated[tuple[scalars.NonEmptyText, ...], Field(min_length=1)]


class Image(Block):
    """A query for an image, which the provider answers again at intervals."""

    provider: Annotated[
        Literal["aws", "gcp", "proxmox", "memory"] | None,
        BeforeValidator(
            scalars.provider_name, json_schema_input_type=Literal["aws", "gcp", "google", "proxmox", "memory"] | None
        ),
    ] = None
    filters: tuple[ImageFilter, ...] = ()
    owners: tuple[scalars.NonEmptyText, ...] = ()
    sort: scalars.Text = ""
    order: Literal["asc", "desc"] = "desc"
    ssm_parameter: scalars.Text = ""  # of AWS: a parameter that holds the image's ID, instead of filters
    fallback: scalars.Text = ""

    rules = (
        (
            lambda image: image.filters or image.ssm_parameter or image.fallback,
            "filters or a fallback, found neither",
        ),
        (
            lambda image: not image.ssm_parameter or (image.provider == "aws" and not image.filters),
            "the provider aws, and no filters, beside an ssm_parameter",
        ),
    )


def _kinds(value: object) -> object:
    kinds: list[object] = value if isinstance(value, list) else [value]
    if not kinds or len(kinds) > 2 or any(kinds.count(each) > 1 or each not in ("server", "client") for each in kinds):
        raise invalid(f'expected "server", "client" or a list of both, found {describe_type(value)}')
    return tuple(kinds)


class Certificate(Block):
    """The contents of a certificate. Strings are templates; values that render empty are omitted."""

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
    cn: scalars.Text = ""
    organization: tuple[scalars.Text, ...] = ()
    country: tuple[scalars.Text, ...] = ()
    province: tuple[scalars.Text, ...] = ()
    locality: tuple[scalars.Text, ...] = ()
    street: tuple[scalars.Text, ...] = ()
    postalCode: tuple[scalars.Text, ...] = ()
    dns: tuple[scalars.Text, ...] = ()
    ip: tuple[scalars.Text, ...] = ()
    uri: tuple[scalars.Text, ...] = ()
    ttl: scalars.Lifetime = 8760 * 3600.0


class CertificateKey(Block):
    source: Literal["agent"]
    name: scalars.PublicKeyName


class CertificateFile(Block):
    kind: Literal["certificate"]
    template: scalars.NonEmptyText
    key: CertificateKey


class SecretFile(Block):
    kind: Literal["secret"]
    source: scalars.UserSecret


class StorageFile(Block):
    kind: Literal["storage"]
    source: Annotated[scalars.NonEmptyText, AfterValidator(storage_keys.check_users_own)]


class EnvFile(Block):
    kind: Literal["env"]
    template: Mapping[scalars.EnvironmentName, scalars.Text]


class JsonFile(Block):
    kind: Literal["json"]
    template: Mapping[str, object]


class StringFile(Block):
    kind: Literal["string"]
    template: str


FileSpec = CertificateFile | SecretFile | StorageFile | EnvFile | JsonFile | StringFile
FILE_KINDS = ("certificate", "secret", "storage", "env", "json", "string")


def _check_file_names(files: object) -> object:
    if isinstance(files, dict):
        if len(files) > MAX_FILES:
            raise invalid(f"expected at most {MAX_FILES} files, found {len(files):,}")
        folded: dict[str, str] = {}
        for name in files:
            other = folded.setdefault(str(name).casefold(), name)
            if other != name:
                raise invalid(f"expected names that differ by more than case, found {quoted(other)} and {quoted(name)}")
    return files


class Userdata(Block):
    """What a VM runs at its first boot: a template, inline or fetched from a URL."""

    base: Literal["", "agent"] = Field(
        default="", description="agent: a script that sets up the agent comes first; the content is a shell script"
    )
    source: Literal["inline", "url"] = "inline"
    encoding: Literal["plain", "base64", "gzip", "base64+gzip"] = "plain"
    content: str = ""

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if self.source == "url" and not self.content.startswith(("https://", "http://")):
            raise invalid(f"expected a URL that starts with https:// or http://, found {quoted(self.content)}")
        if not self.content and not self.base:
            raise invalid("expected content, or the base agent, found neither")
        return self


class Defaults(Block):
    args: scalars.Args = Field(default_factory=dict)
    vars: scalars.Vars = Field(default_factory=dict)
    userdata: Userdata | None = None


class OnDemand(Block):
    """Limits of on-demand instances. None: no limit."""

    max: scalars.Count | None = Field(default=None, description="on-demand instances that a group may have")
    max_per_requester: scalars.Count | None = Field(
        default=None, description="of these, those of one requester: for the Kubernetes operator, a pod's namespace"
    )


Capacity = Mapping[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]{0,252}$")],
    Annotated[
        scalars.NonEmptyText,
        AfterValidator(scalars.matching(QUANTITY, "a Kubernetes quantity such as 4, 500m or 16Gi")),
    ],
]


def _check_choices(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise invalid("expected at least one value, found an empty list")
    if repeated := next((value for value in values if values.count(value) > 1), None):
        raise invalid(f"expected each value once, found {quoted(repeated)} twice")
    return values


InstanceTypes = Annotated[
    tuple[scalars.NonEmptyText, ...], AfterValidator(_check_choices), Field(min_length=1, max_length=MAX_INSTANCE_TYPES)
]
Markets = Annotated[tuple[Literal["spot", "on-demand"], ...], AfterValidator(_check_choices)]
ONE_KEY_FOR_TYPES: scalars.Rule = (
    lambda block: not block.instance_type or not block.instance_types,
    "instance_type or instance_types, found both; keep instance_types for several",
)


class Template(Block):
    kind: scalars.Kind
    arch: Literal["amd64", "arm64"] = "amd64"
    files: Annotated[
        Mapping[scalars.FileName, Annotated[FileSpec, Field(discriminator="kind")]], BeforeValidator(_check_file_names)
    ] = Field(default_factory=dict)
    args: scalars.Args = Field(default_factory=dict)
    vars: scalars.Vars = Field(default_factory=dict)
    userdata: Userdata | None = None
    size: scalars.Count | None = None
    instance_type: scalars.Text | None = None
    instance_types: InstanceTypes | None = Field(
        default=None, description="alternatives in order of preference, instead of instance_type"
    )
    markets: Markets | None = Field(default=None, description="in order of preference; default: as args say")
    prefer: Literal["loose", "strict"] = Field(
        default="loose", description="strict: replace an instance when a better market or type has capacity again"
    )
    subnet_pool: scalars.Text | None = None
    registration_timeout: scalars.Period | None = Field(default=None, description="overrides the value of the shard")
    capacity: Capacity = Field(
        default_factory=dict,
        description="what one instance offers to pods, as Kubernetes quantities: cpu, memory, ephemeral-storage, "
        "nvidia.com/gpu …; cluster-autoscaler needs it to scale a group from zero",
    )
    on_demand: OnDemand = OnDemand.model_validate({})
    checks: Checks = Checks.model_validate({})
    ready_timeout: scalars.Period = Field(
        default=600.0, description="an instance that is not ready this long after it registered is replaced"
    )

    rules = (ONE_KEY_FOR_TYPES,)


WAIT: Literal["wait"] = "wait"
STOP: Literal["stop"] = "stop"


def _pause(value: object) -> object:
    """Parses a duration, "wait" or "stop"."""
    if value in (WAIT, STOP):
        return value
    try:
        if isinstance(value, str):
            return durations.parse(value)
    except ValueError:
        pass
    raise invalid(f'expected a duration, "{WAIT}" or "{STOP}", found {quoted(str(value))}')


def _dump_pause(value: object, info: SerializationInfo) -> object:
    return durations.format(value) if isinstance(value, float) and info.context == scalars.AS_WRITTEN else value


Pause = Annotated[
    float | Literal["wait", "stop"],
    BeforeValidator(_pause),
    PlainSerializer(_dump_pause),
    WithJsonSchema({"type": "string", "examples": [WAIT, STOP, "10m"]}),
]


class Update(Block):
    """How instances are replaced when the group's template or arguments change."""

    max_surge: scalars.Count = Field(default=1, description="VMs that may exist above the size, draining ones included")
    max_unavailable: scalars.Count = Field(default=0, description="ready instances that may be missing")
    order: Literal["parallel", "serial"] = Field(default="parallel", description="serial: one instance after the other")
    settle: scalars.Duration = Field(
        default=0.0, description="serial only: how long a new instance must be ready before the next replacement"
    )
    canary: scalars.Count = Field(default=0, description="instances that are replaced before the rollout pauses")
    pause_after_canary: Pause = Field(
        default=WAIT, description="continue after this time; wait: for `group resume-rollout`; stop: halt"
    )
    max_failures: Annotated[scalars.Count, Field(ge=1)] = Field(
        default=2, description="new instances that may fail to become ready before the rollout halts"
    )
    on_failure: Literal["halt", "rollback"] = Field(
        default="halt", description="rollback: return to the last completed revision"
    )

    rules = (
        (
            lambda u: u.max_surge or u.max_unavailable,
            "max_surge or max_unavailable above 0: with both 0 no instance can be replaced",
        ),
        (
            lambda u: not u.settle or u.order == "serial",
            'order "serial" with settle: parallel replacements do not wait',
        ),
        (lambda u: u.pause_after_canary == WAIT or u.canary, "canary above 0 with pause_after_canary"),
    )


class GroupConfig(Block):
    """A group as written. None: the value comes from the template or the defaults."""

    template: scalars.NonEmptyText
    size: scalars.Count | None = None
    instance_type: scalars.Text | None = None
    instance_types: InstanceTypes | None = Field(
        default=None, description="alternatives in order of preference, instead of instance_type"
    )
    markets: Markets | None = Field(default=None, description="in order of preference; default: as args say")
    prefer: Literal["loose", "strict"] | None = Field(
        default=None, description="strict: replace an instance when a better market or type has capacity again"
    )
    capacity_retry: scalars.Period | None = Field(default=None, description="overrides the value of the shard")
    subnet_pool: scalars.Text | None = None
    vars: scalars.Vars = Field(default_factory=dict)
    args: scalars.Args = Field(default_factory=dict)
    drain_timeout: scalars.Duration | None = None
    load_balancers: tuple[scalars.Text, ...] | None = None
    update: Update | None = None

    rules = (ONE_KEY_FOR_TYPES,)
