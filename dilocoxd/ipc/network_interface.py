"""Finds the name of the network interface that has an address: gloo and NCCL are told a name, operators an address."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_REQUEST: Final = struct.Struct("16s 24x")
_ADDRESS_AT: Final = 20
_IF_INET6: Final = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str:
    """Empty: no interface of this machine has it, or its kernel does not tell."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if wanted.is_loopback:
        return "lo"
    return _six(wanted) if isinstance(wanted, ipaddress.IPv6Address) else _four(wanted)


def _four(wanted: ipaddress.IPv4Address) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, _REQUEST.pack(name.encode()))
            except OSError:
                continue  # it has none
            if answer[_ADDRESS_AT : _ADDRESS_AT + 4] == wanted.packed:
                return name
    return ""


def _six(wanted: ipaddress.IPv6Address) -> str:
    try:
        lines = _IF_INET6.read_text("ascii").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if bytes.fromhex(fields[0]) == wanted.packed:
            return fields[-1]
    return ""
