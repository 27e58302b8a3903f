"""Clients of the clouds that keep keys."""

from nstance.clock import SystemClock, SystemRng
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.gcp.clients import GoogleClients
from nstance.secretstore.keys import KeyClients


def key_clients(aws: AwsClients | None = None, google: GoogleClients | None = None) -> KeyClients:
    clock, rng = SystemClock(), SystemRng()
    return KeyClients(
        aws=aws or AwsClients(region="", clock=clock, rng=rng, environment={}),
        google=google or GoogleClients(project="", clock=clock, rng=rng, environment={}),
    )
