"""Groups that were created through the API and are missing from the configuration.

Such a group is stored only in `groups.jsonc`. If that file is lost or restored from an older backup, the group is missing
although nobody deleted it. The journal remembers which groups were dynamic; such a group is held (nothing is created,
nothing is deleted) until it is configured again or deleted by name through the API.
"""

from dataclasses import replace

from nstance.core.draft import Draft
from nstance.model.decision import View
from nstance.model.rollout import GroupRecord


def is_held(view: View, record: GroupRecord | None) -> bool:
    if record is None or not record.dynamic:
        return False
    desired = view.desired
    return desired is None or (desired.static and not desired.overridden and view.groups_lost)


def update_dynamic_flag(draft: Draft) -> None:
    """Store whether the group, or a setting of it, comes from the API."""
    desired = draft.desired
    if desired is None or is_held(draft.view, draft.record):
        return
    dynamic = not desired.static or desired.overridden
    if dynamic != (draft.record is not None and draft.record.dynamic):
        draft.record = replace(draft.record or GroupRecord(key=draft.view.key), dynamic=dynamic)


def delete_group(draft: Draft) -> None:
    """The group was deleted by name, so from now on its absence from the configuration counts."""
    if draft.desired is None and draft.record is not None:
        draft.record = replace(draft.record, dynamic=False, revisions=())
