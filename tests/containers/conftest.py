"""The engine, the images and the internet, once for all tests here; nothing of it stays."""

from collections.abc import Iterator

import pytest

from tests.containers.engine import base_image, engine, site_image
from tests.containers.networks import Internet
from tests.containers.node import remove
from tests.containers.swarm import SITES, SwarmOfContainers


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The image of a site; the engine runs as long as it is needed."""
    with engine():
        yield site_image()


@pytest.fixture(scope="session")
def swarm(image: str) -> Iterator[SwarmOfContainers]:
    """One swarm that goes through all the tests in their order."""
    internet = Internet(base_image())
    names = [site.name for site in SITES.values()]
    remove(*names)
    internet.close()
    internet.open()
    try:
        yield SwarmOfContainers(image, internet)
    finally:
        remove(*names)
        internet.close()
