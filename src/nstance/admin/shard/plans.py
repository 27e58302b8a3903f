"""What shards say that would be done: shown, and said that nothing was."""

from typing import Any

from nstance.admin import output
from nstance.admin.reach import Reach
from nstance.admin.shard import records
from nstance.admin.shard.asking import Answers


def show(answers: Answers[Any], reach: Reach, form: str, *, paused: bool = False, groups: bool = False) -> None:
    """`answers` are lists of planned actions. `paused`: they follow only when the group is resumed; `groups`: they may be
    of several, so each is named."""
    actions = [records.action(shard, each) for shard, plan in answers.good for each in plan]
    if form != "table":
        output.show(actions, form, columns=())
    elif actions:
        usual = records.PLANS_COLUMNS if groups else records.PLAN_COLUMNS
        columns = records.columns(usual, several=reach.several)
        output.show(records.plan_rows(actions), form, columns=columns, whole=("shard", "group", "instance", "action"))
    if answers.good:
        if paused:
            output.note("the group is paused: nothing is done until it is resumed, and then this is what follows")
        output.note("nothing was changed" if actions else "nothing would be done; nothing was changed")
    answers.check()
