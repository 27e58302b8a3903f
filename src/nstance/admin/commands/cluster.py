"""`nstance-admin cluster`: commands about a whole cluster. Most need storage and secrets, but no running server."""

import click

from nstance.admin.help import LazyGroup

_COMMANDS = "nstance.admin.commands"

COMMANDS = {
    "nonce": (f"{_COMMANDS}.cluster_operators:nonce", "Create a nonce with which an operator registers"),
    "register-operator": (f"{_COMMANDS}.cluster_operators:register", "Register an operator without a nonce"),
    "revoke-operator": (f"{_COMMANDS}.cluster_operators:revoke", "Revoke an operator's access"),
    "operators": (f"{_COMMANDS}.cluster_operators:operators", "List registered operators"),
    "ca": (f"{_COMMANDS}.cluster_ca:ca", "Show or rotate the cluster's CA"),
    "nonce-key": (f"{_COMMANDS}.cluster_ca:nonce_key", "Show or rotate the key that signs nonces"),
    "rekey": (f"{_COMMANDS}.cluster_ca:rekey", "Encrypt everything with the current encryption key"),
    "secret": (f"{_COMMANDS}.cluster_secret:secret", "Store, read, list and remove secrets"),
    "config": (f"{_COMMANDS}.cluster_config:config", "Check, write and read a shard's config"),
    "backup": (f"{_COMMANDS}.cluster_backup:backup", "Back up the bucket to a file"),
    "restore": (f"{_COMMANDS}.cluster_backup:restore", "Restore a backup into a bucket"),
    "drain-all": (f"{_COMMANDS}.cluster_drain:drain_all", "Scale everything to zero in all shards, and wait"),
    "journal": (f"{_COMMANDS}.cluster_journal:journal", "Show a shard's decisions and their reasons"),
}

EXAMPLES = """\
nstance-admin cluster nonce --storage-bucket my-bucket --output nonce.jwt
nstance-admin cluster secret put db-password --storage-bucket my-bucket
nstance-admin cluster config put --shard us-west-2a config.jsonc --storage-bucket my-bucket

On this machine, with files as storage:
export NSTANCE_ADMIN_STORAGE_PROVIDER=file NSTANCE_ADMIN_STORAGE_BUCKET=temp/bucket
nstance-admin cluster journal --shard dev
"""


@click.group(cls=LazyGroup, lazy=COMMANDS, examples=EXAMPLES)
def command() -> None:
    """Manage a cluster's object storage and secrets directly.

    No server needs to run, except for drain-all. S3 access is configured with the usual variables: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_S3_USE_PATH_STYLE. The encryption key comes from
    NSTANCE_ENCRYPTION_KEY."""
