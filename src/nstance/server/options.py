"""The server's command line."""

import argparse
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nstance.config import addresses
from nstance.model.ids import ServerId, ShardId, is_name
from nstance.server.waits import WAITS, Waits

EXAMPLES = """\
examples:
  # storage in a directory, to try it out
  nstance-server --shard dev --storage file --bucket ./bucket --cachedir ./cache

  # an S3 bucket, and a standby on the same machine
  nstance-server --shard us-west-2a --bucket my-bucket --id a
  nstance-server --shard us-west-2a --bucket my-bucket --id b --port-offset 100 --cachedir ./cache-b

  # check a configuration file, or the one in the bucket
  nstance-server --validate shard.jsonc
  nstance-server --shard us-west-2a --bucket my-bucket --validate
  nstance-server --shard us-west-2a --bucket my-bucket --validate shard.jsonc --strict --online

environment:
  NSTANCE_ENCRYPTION_KEY   32 bytes that encrypt the cluster's secrets (if the configuration says so)
  AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_S3_USE_PATH_STYLE   as usual
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    id: ServerId
    shard: ShardId | None
    storage: str
    bucket: str
    prefix: str
    cachedir: Path
    advertise_host: str
    port_offset: int
    validate: str | None  # a file; empty: the one in the bucket; None: run
    strict: bool = False  # with validate: warnings are errors
    online: bool = False  # with validate: secrets and objects are looked up
    debug: bool
    json_logs: bool
    insecure_dev: bool
    waits: Waits = WAITS

    @property
    def names_bucket(self) -> bool:
        return self.shard is not None and bool(self.bucket)


def parse(arguments: Sequence[str], *, version: str) -> Options:
    parser = argparse.ArgumentParser(
        prog="nstance-server",
        description="Runs the groups of one shard. Start one server, and any number of standbys.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--id", help="this server's name (default: made from the host name)")
    add("--shard", help="the shard to serve")
    add("--storage", choices=("s3", "gcs", "file", "memory"), default="s3", help="kind of object storage (default: s3)")
    add("--bucket", default="", help="the bucket, or with --storage file a directory")
    add("--prefix", default="", help="prefix of every key in the bucket")
    add(
        "--cachedir",
        default="/var/cache/nstance",
        help="directory for files that may be lost (default: /var/cache/nstance)",
    )
    add("--advertise-host", default="", help="the host that agents and operators connect to")
    add("--port-offset", type=int, default=0, metavar="N", help="shift all ports: several servers on one machine")
    add("--validate", nargs="?", const="", metavar="FILE", help="check a configuration file, or the bucket's, and exit")
    add("--strict", action="store_true", help="with --validate: warnings are errors")
    add("--online", action="store_true", help="with --validate: look for missing secrets and objects too")
    add("--log-format", choices=("text", "json"), default="text", help="json: one object a line (default: text)")
    add("--log-json", action="store_true", help="the same as --log-format json")
    add("--insecure-dev", action="store_true", help="allow to run without an encryption key; never for real use")
    add("-v", "--debug", action="store_true", help="log more")
    add("--version", action="version", version=f"nstance-server {version}")
    values = parser.parse_args(arguments)
    id = values.id or _host_name()
    for flag, name in (("--id", id), ("--shard", values.shard)):
        if name is not None and not is_name(name):
            parser.error(f"{flag}: expected lower-case letters, digits and single hyphens, at most 32, found {name!r}")
    if values.advertise_host and not addresses.is_host(values.advertise_host):
        parser.error(f"--advertise-host: expected a host name or an IP address, found {values.advertise_host!r}")
    try:
        for address in addresses.PORTS.values():
            addresses.Address("", address).shifted(values.port_offset)
    except ValueError as problem:
        parser.error(f"--port-offset: {problem}")
    if values.validate is None and (values.strict or values.online):
        parser.error("--strict and --online need --validate")
    if values.online and (values.shard is None or not values.bucket):
        parser.error("--online needs --shard and --bucket, where secrets and objects are looked up")
    if not values.validate:  # None: run; empty: the bucket's configuration
        if values.shard is None:
            parser.error("--shard is missing: name the shard to serve")
        if not values.bucket and values.storage != "memory":
            parser.error("--bucket is missing: name the bucket that holds the shard's state")
    fields = vars(values) | {"id": ServerId(id), "cachedir": Path(values.cachedir)}
    is_json = {fields.pop("log_format") == "json", fields.pop("log_json")}
    return Options(**fields, json_logs=any(is_json))


def _host_name() -> str:
    """The host name, turned into a valid ID."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:32].strip("-")
    return name or "server"
