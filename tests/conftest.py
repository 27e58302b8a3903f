"""How tests are spread over processes: a file at a time, and all that start real servers one after another, because two
of those at once on two cores would starve servers that are meant to be watched. They take longest, so they begin first.
(xdist's own groups have no effect with this pytest: they rewrite a name that it no longer reads.)

And that no generated example has to be quick or small: how long it takes, how often one is thrown away and how large one
becomes say something about the machine and about luck, nothing about us.

And that the garbage collector does not look at what pytest collected: thousands of tests would cost each full collection a
quarter of a second."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

LUCK = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
settings.register_profile("untimed", deadline=None, suppress_health_check=LUCK)
settings.load_profile("untimed")

# A shell starts background jobs with SIGINT ignored. Programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def starts_processes(nodeid: str) -> bool:
    return nodeid.startswith("tests/e2e/")


class Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "processes" if starts_processes(nodeid) else nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not starts_processes(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
