"""Responses that do not tell strangers which versions of Python and aiohttp answer.

aiohttp answers malformed requests without any hook, so its default is replaced.
"""

from aiohttp import web_response

PROGRAM = "nstance"


def hide_versions() -> None:
    """Of all HTTP ports of this process. To be called before one is opened."""
    web_response.SERVER_SOFTWARE = PROGRAM  # type: ignore[attr-defined]
