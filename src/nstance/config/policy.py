"""The settings that decisions depend on."""

from nstance.config.model.settings import Settings
from nstance.model.group import Policy


def make_policy(settings: Settings) -> Policy:
    shard = settings.shard
    return Policy(
        suspect_after=shard.health.suspect_after,
        dead_after=shard.health.dead_after,
        shutdown_grace=shard.health.shutdown_grace,
        gc_interval=shard.garbage_collection.interval,
        deleted_retention=shard.garbage_collection.deleted_record_retention,
        eligible_age=shard.expiry.eligible_age,
        forced_age=shard.expiry.forced_age,
        ondemand_age=shard.expiry.ondemand_age,
        default_drain_timeout=shard.default_drain_timeout,
        replace_clones=shard.identity.on_clone == "replace",
        delete_unknown=shard.garbage_collection.unknown == "delete",
    )
