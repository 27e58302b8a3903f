"""The server's command line."""

import argparse
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nstance.config import addresses
from nstance.model.ids import ServerId, ShardId, is_name

EXAMPLES = """\
examples:
  # storage in a directory: nothing else is needed for a first try
  nstance-server --shard dev --storage file --bucket ./bucket --cachedir ./cache

  # an S3 bucket, a standby beside it on the same machine
  nstance-server --shard us-west-2a --bucket my-bucket --id a
  nstance-server --shard us-west-2a --bucket my-bucket --id b --port-offset 100 --cachedir ./cache-b

  # is this configuration right? is the one in the bucket?
  nstance-server --validate shard.jsonc
  nstance-server --shard us-west-2a --bucket my-bucket --validate
  nstance-server --shard us-west-2a --bucket my-bucket --validate shard.jsonc --strict --online

environment:
  NSTANCE_ENCRYPTION_KEY   32 bytes that seal the cluster's secrets (where the configuration says so)
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
    validate: str | None  # a file; empty: the bucket's; None: run
    strict: bool = False  # with validate: warnings are errors
    online: bool = False  # with validate: secrets and objects are looked for
    debug: bool
    json_logs: bool
    insecure_dev: bool

    @property
    def names_bucket(self) -> bool:
        return self.shard is not None and bool(self.bucket)


def parse(arguments: Sequence[str], *, version: str) -> Options:
    parser = argparse.ArgumentParser(
        prog="nstance-server",
        description="Keeps the groups of one shard alive. Run one, and any number of standbys beside it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--id", help="this server's name (default: made from the host name)")
    add("--shard", help="the shard to serve")
    add("--storage", choices=("s3", "file", "memory"), default="s3", help="kind of object storage (default: s3)")
    add("--bucket", default="", help="the bucket, or with --storage file a directory")
    add("--prefix", default="", help="put before every key in the bucket")
    add("--cachedir", default="/var/cache/nstance", help="for files that may be lost (default: /var/cache/nstance)")
    add("--advertise-host", default="", help="the host that agents and operators connect to")
    add("--port-offset", type=int, default=0, metavar="N", help="shift all ports: several servers on one machine")
    add("--validate", nargs="?", const="", metavar="FILE", help="check a configuration file, or the bucket's, and exit")
    add("--strict", action="store_true", help="with --validate: warnings are errors")
    add("--online", action="store_true", help="with --validate: look for missing secrets and objects too")
    add("--log-json", action="store_true", help="log as JSON, one object a line")
    add("--insecure-dev", action="store_true", help="allow to run without an encryption key; never for real use")
    add("-v", "--debug", action="store_true", help="log more")
    add("--version", action="version", version=f"nstance-server {version}")
    given = parser.parse_args(arguments)
    id = given.id or _host_name()
    if not is_name(id):
        parser.error(f"--id: expected lower-case letters, digits and single hyphens, at most 32, found {id!r}")
    if given.shard is not None and not is_name(given.shard):
        parser.error(
            f"--shard: expected lower-case letters, digits and single hyphens, at most 32, found {given.shard!r}"
        )
    if given.advertise_host and not addresses.is_host(given.advertise_host):
        parser.error(f"--advertise-host: expected a host name or an IP address, found {given.advertise_host!r}")
    try:
        for address in addresses.PORTS.values():
            addresses.Address("", address).shifted(given.port_offset)
    except ValueError as problem:
        parser.error(f"--port-offset: {problem}")
    if given.validate is None and (given.strict or given.online):
        parser.error("--strict and --online belong to --validate")
    if given.online and (given.shard is None or not given.bucket):
        parser.error("--online needs --shard and --bucket: that is where secrets and objects are looked for")
    if not given.validate:  # None: run; empty: the bucket's configuration
        if given.shard is None:
            parser.error("--shard is missing: which shard is to be served?")
        if not given.bucket and given.storage != "memory":
            parser.error("--bucket is missing: where is the shard's state?")
    return Options(
        id=ServerId(id),
        shard=ShardId(given.shard) if given.shard is not None else None,
        storage=given.storage,
        bucket=given.bucket,
        prefix=given.prefix,
        cachedir=Path(given.cachedir),
        advertise_host=given.advertise_host,
        port_offset=given.port_offset,
        validate=given.validate,
        strict=given.strict,
        online=given.online,
        debug=given.debug,
        json_logs=given.log_json,
        insecure_dev=given.insecure_dev,
    )


def _host_name() -> str:
    """The host's name as an ID can spell it."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:32].strip("-")
    return name or "server"
