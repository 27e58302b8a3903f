"""The operator's command line and environment, with the names and defaults of Kubernetes operators written in Go.

Go accepts flags with one dash or two, and booleans as `--leader-elect` or `--leader-elect=false`; so does this parser. Of
the zap flags, level and encoder take effect. Stack traces and times have one form here, so their flags are only checked.
"""

import argparse
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from nstance.kube.lease import LeaseTimes
from nstance.model import durations
from nstance.operator.errors import FatalError
from nstance.tasks.backoff import Backoff

EXAMPLES = """\
examples:
  # in a cluster: every option has a default
  nstance-operator --leader-elect

  # on a laptop, against the cluster of a kubeconfig
  NSTANCE_NAMESPACE=default nstance-operator --kubeconfig ~/.kube/config --config ./config.yaml --disable-webhooks

  # JSON logs at debug level, and metrics
  nstance-operator --zap-encoder=json --zap-log-level=debug --metrics-bind-address=:8080

environment:
  NSTANCE_NAMESPACE            namespace of all objects of the operator (default: the pod's)
  NSTANCE_CA_CONFIGMAP         ConfigMap with the cluster's CA in ca.crt (default: nstance-cluster-ca)
  NSTANCE_CERT_SECRET          Secret for the client certificate (default: nstance-operator-cert)
  NSTANCE_KEY_SECRET           Secret for the key pair (default: nstance-operator-key)
  NSTANCE_NONCE_SECRET         Secret with the registration nonce in nonce.jwt (default: nstance-operator-nonce)
  NSTANCE_CAPI_ENDPOINT        API server of a separate workload cluster; you provide its <cluster>-kubeconfig Secret
  NSTANCE_CAPI_SERVICEACCOUNT  ServiceAccount whose short-lived tokens go into that Secret (default: nstance-capi-workload)
  NSTANCE_K8S_JSON             accepted and ignored; the operator always uses JSON
  KUBECONFIG                   as for kubectl
"""

CONFIG = "/etc/nstance/operator/config.yaml"
WEBHOOK_CONFIGURATION = "nstance-operator"
WEBHOOK_CERTIFICATES = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108 - controller-runtime's default
SERVICE_ACCOUNT = "nstance-capi-workload"
KEY_SECRET = "nstance-operator-key"
ON_DEMAND_NAMESPACES = "nstance.dev/on-demand=enabled"
HTTPS_PORT = 443
API_PORT = 6443

_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")
_GO_FLAG = re.compile(r"-[a-z][a-z-]+(=.*)?", re.DOTALL)
_TIMES = ("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano")


class Level(Enum):
    DEBUG = "debug"
    INFO = "info"
    ERROR = "error"
    PANIC = "panic"


@dataclass(frozen=True, slots=True)
class BindAddress:
    host: str  # empty: all interfaces
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of an API server."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the operator waits, in seconds. No flag sets them."""

    config_poll: float = 1.0
    kube_retry: float = 1.0  # at the start
    registration: float = 20.0  # unreachable shards are asked again: a failover takes a few seconds
    link_retry: Backoff = Backoff(0.25, 10.0, jitter=1.0)
    ping: float = 2.0  # an unresponsive server is noticed within five seconds
    pong: float = 3.0
    cluster_api_gone: float = 60.0  # Cluster API's controllers that have not looked at a change for so long are gone
    cluster_api_check: float = 5.0
    call_settled: float = 15.0  # longer than a call to a shard may take
    vm_gone_check: float = 5.0  # until the shard is asked again whether the VM is gone
    failed_pod_retry: float = 60.0  # until a pod whose instance could not be created gets another one


WAITS = Waits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    config: Path = Path(CONFIG)
    health: BindAddress | None = BindAddress("", 8081)
    metrics: BindAddress | None = None
    webhook: BindAddress | None = BindAddress("", 9443)  # None: disabled
    webhook_certificates: Path = Path(WEBHOOK_CERTIFICATES)
    webhook_configuration: str = WEBHOOK_CONFIGURATION
    leader_elect: bool = False
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    on_demand_namespaces: str | None = ON_DEMAND_NAMESPACES  # a label selector, empty: all; None: the feature is off
    delete_nodes: bool | None = None  # None: where Cluster API's controllers do not run
    kubeconfig: str = ""
    level: Level = Level.INFO
    json_logs: bool = False
    waits: Waits = WAITS
    environment: "Environment" = field(default_factory=lambda: Environment())


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The variables of the environment: names of Kubernetes objects, and the workload cluster."""

    namespace: str = ""  # empty: the pod's, or the kubeconfig's
    ca_configmap: str = "nstance-cluster-ca"
    cert_secret: str = "nstance-operator-cert"
    key_secret: str = KEY_SECRET
    nonce_secret: str = "nstance-operator-nonce"
    endpoint: Endpoint | None = None
    service_account: str = SERVICE_ACCOUNT


def parse(arguments: Sequence[str], environment: Mapping[str, str], *, version: str) -> Options:
    """Exits the process for --help, --version and wrong flags. Raises FatalError for a wrong variable."""
    parser = argparse.ArgumentParser(
        prog="nstance-operator",
        description="Syncs Cluster API resources with the shards of one Nstance cluster, and drains nodes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", default=CONFIG, metavar="FILE", help=f"the operator configuration file (default: {CONFIG})")
    add("--health-probe-bind-address", type=_bind, default=":8081", metavar="ADDR", help="default: :8081; 0 disables")
    add("--metrics-bind-address", type=_bind, default="0", metavar="ADDR", help="default: 0 (disabled)")
    _flag(parser, "--leader-elect", "act only while holding the lease nstance-operator-leader-election")
    times = LeaseTimes()
    add(
        "--leader-elect-lease-duration",
        type=_duration,
        default=times.duration,
        metavar="TIME",
        help=f"another replica leads so long after the leader's last sign of life (default: {times.duration:g}s)",
    )
    add(
        "--leader-elect-renew-deadline",
        type=_duration,
        default=times.deadline,
        metavar="TIME",
        help=f"a leader that cannot renew its lease stops after this time (default: {times.deadline:g}s)",
    )
    _flag(parser, "--disable-webhooks", "serve no admission webhook (for development)")
    add("--webhook-bind-address", type=_bind, default=":9443", metavar="ADDR", help="default: :9443")
    add(
        "--webhook-configuration",
        default=WEBHOOK_CONFIGURATION,
        metavar="NAME",
        help="the ValidatingWebhookConfiguration that gets the webhook's CA (default: %(default)s)",
    )
    add(
        "--webhook-cert-path",
        default=WEBHOOK_CERTIFICATES,
        metavar="DIR",
        help=f"has tls.crt and tls.key (default: {WEBHOOK_CERTIFICATES}); if missing, the operator issues them",
    )
    add(
        "--on-demand-namespaces",
        type=_selector,
        default=ON_DEMAND_NAMESPACES,
        metavar="SELECTOR",
        help='labels of namespaces whose pods may request nodes (default: %(default)s); "": all namespaces',
    )
    _flag(parser, "--disable-on-demand-pods", "no pod may request a node")
    add(
        "--delete-nodes",
        choices=("auto", "true", "false"),
        default="auto",
        help="delete the Node of a VM that is gone (default: auto, where Cluster API's controllers do not run)",
    )
    add("--kubeconfig", default="", metavar="FILE", help="default: KUBECONFIG, then the pod's service account")
    add("--zap-log-level", type=_level, metavar="LEVEL", help="debug, info, error, panic or a number (default: info)")
    add("--zap-encoder", choices=("json", "console"), help="default: console")
    add("--log-format", choices=("text", "json"), help="the same as --zap-encoder console or json")
    _flag(parser, "--zap-devel", "debug level and console format; false: JSON", default=None)
    add("--zap-stacktrace-level", choices=("info", "error", "panic"), help="accepted and ignored")
    add("--zap-time-encoding", choices=_TIMES, help="accepted and ignored; times are RFC 3339")
    add("--version", action="version", version=f"nstance-operator {version}")
    flags = parser.parse_args([f"-{word}" if _GO_FLAG.fullmatch(word) else word for word in arguments])
    default_level = Level.DEBUG if flags.zap_devel else Level.INFO
    return Options(
        config=Path(flags.config),
        health=flags.health_probe_bind_address,
        metrics=flags.metrics_bind_address,
        webhook=None if flags.disable_webhooks else flags.webhook_bind_address,
        webhook_certificates=Path(flags.webhook_cert_path),
        webhook_configuration=flags.webhook_configuration,
        leader_elect=flags.leader_elect,
        lease_times=_lease_times(parser, flags.leader_elect_lease_duration, flags.leader_elect_renew_deadline),
        on_demand_namespaces=None if flags.disable_on_demand_pods else flags.on_demand_namespaces,
        delete_nodes={"auto": None, "true": True, "false": False}[flags.delete_nodes],
        kubeconfig=flags.kubeconfig,
        level=flags.zap_log_level or default_level,
        json_logs=_is_json(flags),
        environment=_environment(environment),
    )


def _is_json(flags: argparse.Namespace) -> bool:
    if flags.log_format or flags.zap_encoder:
        return "json" in (flags.log_format, flags.zap_encoder)
    return flags.zap_devel is False


def _environment(variables: Mapping[str, str]) -> Environment:
    defaults = Environment()

    def name(variable: str, default: str) -> str:
        value = variables.get(variable, "").strip() or default
        if len(value) > 253 or not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|", value):
            raise FatalError(f"{variable}: expected the name of a Kubernetes object, found {value[:64]!r}")
        return value

    environment = Environment(
        namespace=name("NSTANCE_NAMESPACE", ""),
        ca_configmap=name("NSTANCE_CA_CONFIGMAP", defaults.ca_configmap),
        cert_secret=name("NSTANCE_CERT_SECRET", defaults.cert_secret),
        key_secret=name("NSTANCE_KEY_SECRET", defaults.key_secret),
        nonce_secret=name("NSTANCE_NONCE_SECRET", defaults.nonce_secret),
        endpoint=_endpoint(variables.get("NSTANCE_CAPI_ENDPOINT", "").strip()),
        service_account=name("NSTANCE_CAPI_SERVICEACCOUNT", defaults.service_account),
    )
    if len({environment.cert_secret, environment.key_secret, environment.nonce_secret}) < 3:
        raise FatalError(
            "NSTANCE_CERT_SECRET, NSTANCE_KEY_SECRET and NSTANCE_NONCE_SECRET: expected three different names"
        )
    return environment


def _endpoint(text: str) -> Endpoint | None:
    """From `https://host:6443` or `host:6443`."""
    if not text:
        return None
    try:
        return api_server(text if "//" in text else f"https://{text}", port=HTTPS_PORT if "//" in text else API_PORT)
    except ValueError as problem:
        raise FatalError(f"NSTANCE_CAPI_ENDPOINT: {problem}") from problem


def api_server(url: str, *, port: int = HTTPS_PORT) -> Endpoint:
    """Host and port of a URL; `port` is the default. Raises ValueError."""
    try:
        parts = urlsplit(url)
        found = Endpoint(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else port))
    except ValueError:
        found = Endpoint("", 0)
    if not found.host:
        raise ValueError(f"expected an API server such as https://10.0.0.1:6443, found {url[:200]!r}")
    return found


def _flag(parser: argparse.ArgumentParser, name: str, help: str, default: bool | None = False) -> None:
    parser.add_argument(name, nargs="?", const=True, default=default, type=_boolean, metavar="BOOL", help=help)


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, found {text[:64]!r}")


def _bind(text: str) -> BindAddress | None:
    if text in ("0", ""):
        return None
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"expected host:port, :port or 0, found {text[:64]!r}")
    return BindAddress(host, int(port))


def _selector(text: str) -> str:
    """A label selector. The API server checks it too, but only once the operator runs."""
    if not re.fullmatch(r"[A-Za-z0-9./_!=, ()-]*", text):
        raise argparse.ArgumentTypeError(f"expected a label selector such as team=a, found {text[:64]!r}")
    return text


def _duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _lease_times(parser: argparse.ArgumentParser, duration: float, deadline: float) -> LeaseTimes:
    """Renewals and attempts keep their share of the deadline."""
    times, default = None, LeaseTimes()
    if duration == round(duration) and 1 <= duration <= 3600:
        share = deadline / default.deadline
        with contextlib.suppress(ValueError):
            times = LeaseTimes(
                duration=duration, deadline=deadline, renew=default.renew * share, retry=default.retry * share
            )
    if times is None:
        parser.error("--leader-elect-lease-duration: expected whole seconds, more than --leader-elect-renew-deadline")
    return times


def _level(text: str) -> Level:
    """A number is zap's verbosity: above 0 it means debug."""
    if text.isascii() and text.isdigit():
        return Level.DEBUG if int(text[:9]) > 0 else Level.INFO
    try:
        return Level(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected debug, info, error, panic or a number, found {text[:64]!r}"
        ) from None
