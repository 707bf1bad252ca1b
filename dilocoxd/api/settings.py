"""What the API listens on and what it lets in: the `[api]` section of site.toml and the token itself."""

import socket
from dataclasses import dataclass

from dilocoxd.config.api import ApiSection


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`token` is the secret; empty: control is off."""

    section: ApiSection
    token: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Host names under which requests are answered, besides IP addresses and names without a dot."""
        return frozenset(name.lower() for name in (*self.section.names, self.section.host, socket.gethostname()))
