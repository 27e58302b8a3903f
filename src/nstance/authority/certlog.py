"""The log of workload certificates. A certificate that is not in the log is not given out."""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass

from nstance.clock import Rng
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.model.instance import Instance
from nstance.objects import errors as storage
from nstance.objects import settle
from nstance.objects.port import Key, ObjectStore
from nstance.pki import ca

VERSION = 1

_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Logged:
    name: str  # of the file that the certificate is for
    issued: ca.Issued


async def write(
    store: ObjectStore,
    batch: Sequence[Logged],
    *,
    shard: ShardId,
    instance: Instance,
    now: float,
    rng: Rng,
) -> Key:
    """Returns only when the batch is stored; raises storage errors otherwise."""
    document = {
        "v": VERSION,
        "op": f"{rng.bits(128):032x}",  # makes each entry unique, so that a lost answer can be recognized
        "shard": shard,
        "tenant": instance.tenant,
        "instance": instance.id,
        "at": now,
        "certificates": [
            {
                "name": logged.name,
                "serial": logged.issued.serial_hex,
                "expires": logged.issued.expires,
                "key_sha256": logged.issued.key_fingerprint,
            }
            for logged in batch
        ],
    }
    body = json.dumps(document, indent=2).encode()
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    for step in range(_ATTEMPTS):  # two batches within one microsecond: the later one takes the next
        at = moment + datetime.timedelta(microseconds=step)
        key = storage_keys.certlog(shard, tenant=instance.tenant, at=at, instance=instance.id)
        if (await settle.create_or_adopt(store, key, body)).body == body:
            return key
    raise storage.UnavailableError(
        f"failed to log certificates of {instance.id}: {_ATTEMPTS} entries in as many microseconds; try again"
    )
