"""`group` with all its commands."""

from nstance.admin.commands import group_rollout
from nstance.admin.commands.group import command

__all__ = ["command", "group_rollout"]
