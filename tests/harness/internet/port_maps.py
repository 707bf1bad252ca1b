"""A home router that opens a port when a site asks it, by NAT-PMP (RFC 6886) or by UPnP (Internet Gateway Device 1).

Only what a site asks: the outside address, one TCP port mapped, one given back. The rules of the router are real ones.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Literal, cast

from tests.harness.internet.namespaces import standing_in
from tests.harness.internet.nat import NattedInternet

Way = Literal["NAT-PMP", "UPnP"]
PMP_PORT = 5351
PMP_ADDRESS, PMP_TCP, PMP_ANSWER = 0, 2, 128
PMP_REFUSED = 2
SSDP_GROUP, SSDP_PORT = "239.255.255.250", 1900
WEB_PORT = 5000
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
DEVICES = ("InternetGatewayDevice", "WANDevice", "WANConnectionDevice")
"""Each lies in the one before it; the service is in the last."""


class Router:
    """Behind which one hidden site is: what it was asked, and which ports it opened."""

    def __init__(self, internet: NattedInternet, site: str) -> None:
        self._internet = internet
        self._site = site
        self.asked: list[str] = []
        self.opened: dict[int, int] = {}
        """Outside port: inside port."""

    @property
    def inside(self) -> str:
        """Its address on the side of the site."""
        return self._internet.address(self._site).removesuffix(".2") + ".1"

    @property
    def outside(self) -> str:
        """Its address on the internet."""
        return self._internet.router_address(self._site)

    def open(self, outside: int, inside: int) -> bool:
        """Whether the port is open now."""
        if outside not in self.opened:
            self._internet.forward(self._site, outside, inside)
            self.opened[outside] = inside
        return self.opened[outside] == inside

    def answer_pmp(self, request: bytes) -> bytes:
        """To one datagram of NAT-PMP."""
        operation = request[1]
        self.asked.append(f"NAT-PMP {operation}")
        if operation == PMP_ADDRESS:
            return struct.pack(">BBHI4s", 0, PMP_ANSWER, 0, 1, socket.inet_aton(self.outside))
        inside, outside, seconds = struct.unpack(">HHI", request[4:12])
        is_open = operation == PMP_TCP and bool(seconds) and self.open(outside or inside, inside)
        result = 0 if is_open or not seconds else PMP_REFUSED
        return struct.pack(
            ">BBHIHHI", 0, PMP_ANSWER + operation, result, 1, inside, outside or inside, seconds if is_open else 0
        )

    def answer_search(self, request: bytes) -> bytes:
        """To one datagram that looks for devices; empty: it is none."""
        wanted = re.search(rb"^ST: *(\S+)", request, re.M | re.I)
        if not request.startswith(b"M-SEARCH") or wanted is None:
            return b""
        what = wanted[1].decode()
        self.asked.append(f"UPnP search {what}")
        lines = (
            "HTTP/1.1 200 OK", "CACHE-CONTROL: max-age=120", f"ST: {what}", f"USN: uuid:router::{what}", "EXT:",
            "SERVER: Linux UPnP/1.1 router/1", f"LOCATION: http://{self.inside}:{WEB_PORT}/root.xml", "", "",
        )  # fmt: skip
        return "\r\n".join(lines).encode()

    def answer_web(self, head: str, body: str) -> tuple[int, str]:
        """Status and body, to one request for the description or for an action of the service."""
        action = re.search(r'^SOAPAction: *"[^"]*#(\w+)"', head, re.M | re.I)
        if action is None:
            return 200, _description()
        self.asked.append(f"UPnP {action[1]}")
        match action[1]:
            case "GetNATRSIPStatus":
                return 200, _said(action[1], NewRSIPAvailable="0", NewNATEnabled="1")
            case "GetExternalIPAddress":
                return 200, _said(action[1], NewExternalIPAddress=self.outside)
            case "AddPortMapping" if _of(body, "NewProtocol") == "TCP" and self.open(
                int(_of(body, "NewExternalPort")), int(_of(body, "NewInternalPort"))
            ):
                return 200, _said(action[1])
            case "DeletePortMapping":
                return 200, _said(action[1])
        return 500, _envelope("<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring></s:Fault>")


@contextlib.asynccontextmanager
async def router(internet: NattedInternet, site: str, way: Way) -> AsyncIterator[Router]:
    """The router of a hidden site, which can be asked in one way; before and after nobody answers there."""
    here = Router(internet, site)
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        with standing_in(internet.namespace(f"nat{site}")):
            datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            if way == "NAT-PMP":
                datagrams.bind((here.inside, PMP_PORT))
            else:
                datagrams.bind(("", SSDP_PORT))
                member = socket.inet_aton(SSDP_GROUP) + socket.inet_aton(here.inside)
                datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            web = socket.create_server((here.inside, WEB_PORT))
        datagrams.setblocking(False)
        answer = here.answer_pmp if way == "NAT-PMP" else here.answer_search
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(answer), sock=datagrams)
        stack.callback(transport.close)
        await stack.enter_async_context(await asyncio.start_server(partial(_serve, here), sock=web))
        yield here


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        answer = self._answer(data)
        if answer:
            self._transport.sendto(answer, addr)


async def _serve(here: Router, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"^Content-Length: *(\d+)", head, re.M | re.I)
        body = (await reader.readexactly(int(length[1]) if length else 0)).decode()
        status, text = here.answer_web(head, body)
        data = text.encode()
        line = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Internal Server Error'}"
        fields = f'Content-Type: text/xml; charset="utf-8"\r\nContent-Length: {len(data)}\r\nConnection: close'
        writer.write(f"{line}\r\n{fields}\r\n\r\n".encode() + data)
        await writer.drain()
    finally:
        writer.close()


def _description() -> str:
    text = (
        f"<serviceList><service><serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1"
        "</serviceId><SCPDURL>/service.xml</SCPDURL><controlURL>/control</controlURL><eventSubURL>/event</eventSubURL>"
        "</service></serviceList>"
    )
    for place, device in enumerate(reversed(DEVICES)):
        kind = f"<deviceType>urn:schemas-upnp-org:device:{device}:1</deviceType><UDN>uuid:{device}</UDN>"
        text = f"<device>{kind}{text}</device>"
        if place < len(DEVICES) - 1:
            text = f"<deviceList>{text}</deviceList>"
    version = "<specVersion><major>1</major><minor>0</minor></specVersion>"
    return f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{version}{text}</root>'


def _said(action: str, **values: str) -> str:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
    return _envelope(f'<u:{action}Response xmlns:u="{SERVICE}">{inner}</u:{action}Response>')


def _envelope(inner: str) -> str:
    spaces = (
        'xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"'
        ' s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"'
    )
    return f'<?xml version="1.0"?><s:Envelope {spaces}><s:Body>{inner}</s:Body></s:Envelope>'


def _of(body: str, name: str) -> str:
    found = re.search(rf"<{name}[^>]*>([^<]*)</{name}>", body)
    return found[1] if found else ""
