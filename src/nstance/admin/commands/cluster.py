"""`nstance-admin cluster`: what needs only storage and secrets, no running server."""

import click

from nstance.admin.help import LazyGroup

_HERE = "nstance.admin.commands"

COMMANDS = {
    "nonce": (f"{_HERE}.cluster_operators:nonce", "Make a nonce that an operator registers with"),
    "register-operator": (f"{_HERE}.cluster_operators:register", "Register an operator without a nonce"),
    "revoke-operator": (f"{_HERE}.cluster_operators:revoke", "Take an operator's access away"),
    "operators": (f"{_HERE}.cluster_operators:operators", "List registered operators"),
    "ca": (f"{_HERE}.cluster_ca:ca", "Show or rotate the cluster's CA"),
    "nonce-key": (f"{_HERE}.cluster_ca:nonce_key", "Show or rotate the key that nonces are signed with"),
    "rekey": (f"{_HERE}.cluster_ca:rekey", "Seal everything with the current encryption key"),
    "secret": (f"{_HERE}.cluster_secret:secret", "Store, read, list and remove secrets"),
    "config": (f"{_HERE}.cluster_config:config", "Check, write and read a shard's config"),
    "backup": (f"{_HERE}.cluster_backup:backup", "Write everything in the bucket to a file"),
    "restore": (f"{_HERE}.cluster_backup:restore", "Put a backup into a bucket"),
    "journal": (f"{_HERE}.cluster_journal:journal", "Show what a shard decided, and why"),
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
    """Work on a cluster's object storage and secrets directly.

    No server needs to run. S3 is reached with the usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_REGION, AWS_ENDPOINT_URL, AWS_S3_USE_PATH_STYLE. The encryption key comes from NSTANCE_ENCRYPTION_KEY."""
