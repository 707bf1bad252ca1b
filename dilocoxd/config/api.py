"""Decides how people and programs look at a site: the HTTP API and where scalar values go. Part of site.toml."""

import ipaddress
from typing import Annotated, Self

from pydantic import Field, model_validator

from dilocoxd.config.addresses import host_and_port
from dilocoxd.config.fields import Section, knob

Names = Annotated[tuple[str, ...], Field(strict=False)]


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ApiSection(Section):
    """The HTTP API."""

    host: Annotated[
        str,
        knob(
            "Address the API listens on; 0.0.0.0 is all of IPv4, :: all of IPv6.",
            unit="IP address",
            cost="beyond loopback everybody can read it.",
            min_length=2,
        ),
    ] = "127.0.0.1"
    port: Annotated[int, knob("TCP port of the API; 0 is no API.", unit="port", cost="none.", ge=0, le=65535)] = 8080
    token_file: Annotated[
        str,
        knob(
            "File with the bearer token for control, relative to the run directory; made at the start if missing.",
            unit="path",
            cost="who can read it can pause and stop this site.",
            min_length=1,
        ),
    ] = "api.token"
    read_needs_token: Annotated[
        bool,
        knob(
            "Ask for the token for reading too, except /healthz and /readyz.",
            unit="flag",
            cost="the dashboard asks for the token once.",
        ),
    ] = False
    names: Annotated[
        Names,
        knob(
            "Further host names by which the API may be called (addresses and names without a dot always may).",
            unit="host names",
            cost="a name that others control lets their web pages read the API through your browser.",
            max_length=32,
        ),
    ] = ()
    tls_certificate: Annotated[
        str, knob("PEM file with the certificate chain; empty: plain HTTP.", unit="path", cost="none.")
    ] = ""
    tls_key: Annotated[str, knob("PEM file with its private key.", unit="path", cost="none.")] = ""
    requests_per_s_max: Annotated[
        int,
        knob("Requests answered per second and client address.", unit="requests/s", cost="CPU.", ge=1, le=100_000),
    ] = 500
    connections_max: Annotated[
        int, knob("Open connections.", unit="connections", cost="memory for each.", ge=4, le=10_000)
    ] = 128
    streams_max: Annotated[
        int, knob("Open event streams, at most.", unit="streams", cost="memory for each.", ge=1, le=1000)
    ] = 32

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("api.tls_certificate and api.tls_key go together; give both, or neither")
        return self

    @property
    def base_url(self) -> str:
        """Where a program on this machine reaches the API."""
        scheme = "https" if self.tls_certificate else "http"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{scheme}://{host_and_port(host, self.port)}"

    def warnings(self) -> list[str]:
        """What is legal but probably not meant."""
        if self.port == 0 or is_loopback(self.host):
            return []
        found = []
        if not self.read_needs_token:
            found.append(
                f"api.host = '{self.host}': everybody who reaches port {self.port} can read the state of this site; set"
                " api.read_needs_token = true, or api.host = '127.0.0.1'"
            )
        if not self.tls_certificate:
            found.append(
                f"api.host = '{self.host}' without TLS: the token travels in clear; set api.tls_certificate and"
                " api.tls_key, or keep to a network that you trust"
            )
        return found


class SinksSection(Section):
    """Where losses and round times go besides /metrics; a slow or dead sink costs values, never training time."""

    tensorboard: Annotated[
        str,
        knob(
            "Directory for TensorBoard event files, relative to the run directory; empty: none.",
            unit="path",
            cost="needs the extra `tensorboard`; some 30 MB of memory.",
        ),
    ] = ""
    wandb_project: Annotated[
        str,
        knob(
            "Weights & Biases project; empty: none. Key and mode come from WANDB_API_KEY and WANDB_MODE.",
            unit="text",
            cost="needs the extra `wandb`, and sends values to that service.",
            max_length=128,
        ),
    ] = ""
