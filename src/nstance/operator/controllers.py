"""The controllers that run, in one list."""

from nstance.operator.clusters import Clusters
from nstance.operator.parts import Controller, Parts


def build(parts: Parts) -> list[Controller]:
    return [Clusters(parts)]
