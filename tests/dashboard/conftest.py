"""A network for the browser in which nothing changes while other tests bring up and take down interfaces."""

import os
from collections.abc import Iterator

import pytest

from tests.harness.internet.namespaces import standing_apart
from tests.harness.running.warm import end_forks


@pytest.fixture(scope="module", autouse=True)
def quiet_network() -> Iterator[None]:
    """Chromium ends what it asks for whenever an address of the machine comes or goes, as with every container: a page
    of which one module is lost so never begins. As root browser, servers and sites live in a network of their own."""
    if os.geteuid() != 0:
        yield
        return
    end_forks()
    with standing_apart():
        yield
        end_forks()
