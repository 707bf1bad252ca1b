"""Runs on the local network, by mDNS: a site tells where it is, and `dilocoxd join` without a link hears of it.

What is told: run, site, peer id, port, and whether an invite is needed; never an invite. What is heard comes from
anybody on that network: each field must have the form that it has here, or the answer is dropped. It proves nothing:
the manifest's hash and the admission decide as for any address. zeroconf is imported only where this is used.
"""

import asyncio
import importlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dilocoxd.config.addresses import ip_version, read_address
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId, RunId, is_peer_id
from dilocoxd.site_names import is_site_name

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

SERVICE: Final = "_dilocoxd._tcp.local."
ADDRESSES_TOLD: Final = 4
ANSWERS_MAX: Final = 64
"""Whoever answers more often than this is not asked further."""
ASK_MS: Final = 1000
GOODBYE_S: Final = 2.0
ADMISSIONS: Final = ("invite", "open", "closed")
_RUN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}-[0-9a-f]{16}")
_FIELDS: Final = ("run", "admission", "site", "peer")


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One site of a run on this network, as it tells of itself."""

    run: RunId
    admission: str
    """One of ADMISSIONS."""
    site: str
    """Its name; may be empty."""
    peer: PeerId
    ips: tuple[str, ...]
    port: int

    @property
    def address(self) -> str:
        """What to type behind `dilocoxd join`."""
        return f"{read_address(self.ips[0]).multiaddr(self.port)}/p2p/{self.peer}"

    def properties(self) -> dict[str, str]:
        """What is told beside addresses and port."""
        return {"run": self.run, "admission": self.admission, "site": self.site, "peer": self.peer}


def local_ips(addresses: Sequence[str]) -> tuple[str, ...]:
    """IPv4 addresses of multiaddresses that mean this machine to others on its networks."""
    hosts = [address.split("/")[2] for address in addresses if address.startswith("/ip4/") and "circuit" not in address]
    return tuple(dict.fromkeys(host for host in hosts if not host.startswith("127.")))[:ADDRESSES_TOLD]


def read_answer(properties: Mapping[bytes, bytes | None], ips: Sequence[str], port: int | None) -> LocalRun | None:
    """What somebody on the network tells, if all of it has the right form.

    >>> read_answer({b"run": b"tiny-0123456789abcdef"}, ["192.168.1.5"], 31337) is None
    True
    """
    told = {name: (properties.get(name.encode()) or b"").decode("ascii", "replace") for name in _FIELDS}
    good_ips = tuple(ip for ip in ips if ip_version(ip) == 4)[:ADDRESSES_TOLD]
    is_right = (
        _RUN.fullmatch(told["run"]) is not None
        and told["admission"] in ADMISSIONS
        and is_site_name(told["site"])
        and is_peer_id(told["peer"])
        and bool(good_ips)
        and port is not None
        and 1 <= port <= 65535
    )
    if not is_right or port is None:
        return None
    return LocalRun(RunId(told["run"]), told["admission"], told["site"], PeerId(told["peer"]), good_ips, port)


async def tell(found: LocalRun) -> None:
    """Answer whoever asks on the local networks, until cancelled. Returns at once where there is no such network."""
    if not found.ips:
        return
    # A thread: the import takes half a second.
    library = await asyncio.to_thread(importlib.import_module, "zeroconf.asyncio")
    zeroconf = importlib.import_module("zeroconf")
    label = f"{found.run[-16:]}-{found.peer[-16:]}"
    info = library.AsyncServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        port=found.port,
        properties=found.properties(),
        parsed_addresses=list(found.ips),
        server=f"{label}.local.",
    )
    try:
        told = library.AsyncZeroconf(interfaces=list(found.ips), ip_version=zeroconf.IPVersion.V4Only)
    except OSError:
        return  # no multicast on this machine
    try:
        # The label holds the end of our peer id: nobody else has it, so nobody need be asked first.
        await told.async_register_service(info, cooperating_responders=True)
        await asyncio.Event().wait()
    except (OSError, zeroconf.Error):
        return  # the network went away; nobody needs this to train
    finally:
        try:
            async with asyncio.timeout(GOODBYE_S):
                await told.async_unregister_all_services()
                await told.async_close()
        except (OSError, zeroconf.Error):  # a timeout is an OSError
            told.zeroconf.close()


def look(timeout_s: float) -> list[LocalRun]:
    """Runs that sites on the local networks tell of, by run and site. Blocks for `timeout_s`; raises ConfigError."""
    from zeroconf import IPVersion, ServiceBrowser, Zeroconf

    names: list[str] = []
    is_full = threading.Event()

    def heard(zeroconf: "Zeroconf", service_type: str, name: str, state_change: object) -> None:
        if name not in names:
            names.append(name)
        if len(names) >= ANSWERS_MAX:
            is_full.set()

    try:
        zeroconf = Zeroconf(ip_version=IPVersion.V4Only)
    except (OSError, RuntimeError) as error:  # the second without any interface
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"this machine cannot ask on its local network ({reason}); give a link to `dilocoxd join`"
        ) from error
    try:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[heard])
        deadline = time.monotonic() + timeout_s
        is_full.wait(timeout_s)
        browser.cancel()
        answers = [_asked(zeroconf, name, deadline) for name in names[:ANSWERS_MAX]]
    finally:
        zeroconf.close()
    found = [run for info in answers if info is not None and (run := _read(info)) is not None]
    return sorted(set(found), key=lambda one: (one.run, one.site, one.peer))


def _asked(zeroconf: "Zeroconf", name: str, deadline: float) -> "ServiceInfo | None":
    """What is known of a name; what the browser has not heard by the end is asked for once, briefly.

    None too where the name is not of the form that DNS-SD asks for: it comes from anybody.
    """
    from zeroconf import Error

    left_ms = (deadline - time.monotonic()) * 1000
    try:
        return zeroconf.get_service_info(SERVICE, name, timeout=round(min(ASK_MS, max(1.0, left_ms + ASK_MS / 4))))
    except Error:
        return None


def _read(info: "ServiceInfo") -> LocalRun | None:
    return read_answer(info.properties, info.parsed_addresses(), info.port)
