"""Every check of `dilocoxd doctor`: its name, what it looks at, and what to do when it finds something.

The runbook is made from this table; doctor.py and checks_*.py fill in what was found.
"""

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "info", "warning", "error"]

FINDINGS: Final[dict[str, tuple[str, str]]] = {
    "python": ("Python is 3.11 or newer.", "Install Python 3.11 and make a new virtual environment with it."),
    "torch": (
        "torch can be imported and is the version that dilocoxd was tested with.",
        "Install a version of the range that the text names into the environment of dilocoxd, with pip.",
    ),
    "gpu": (
        "With parallel.device = 'cuda': a GPU for each trainer process on this machine, a driver, and NCCL; with"
        " workers.encode_device = 'cuda' a GPU.",
        "Install the driver and a CUDA build of torch, use fewer processes, or set parallel.device = 'cpu' with"
        " parallel.backend = 'gloo' (--device cpu), and workers.encode_device = 'cpu'.",
    ),
    "compiler": (
        "With parallel.compile = true: a compiler that torch.compile can use, and the headers of Python.",
        "Install g++ (with GPUs gcc and triton) and python3-dev, or set parallel.compile = false.",
    ),
    "config": ("run.toml and site.toml are accepted.", "Correct the field that the text names."),
    "identity": (
        "The private key is there and only the owner can read it.",
        "chmod 600 the key; if it is missing or damaged: `dilocoxd identity new RUN_DIR`.",
    ),
    "host": (
        "network.host, api.host and, with nodes, cluster.host are addresses of this machine.",
        "Give one with --host or --api-host (network.host, api.host, cluster.host in site.toml); 0.0.0.0 is all of"
        " them.",
    ),
    "port_network": (
        "network.port can be listened on, or the daemon listens on it.",
        "Stop the other program, or give another port with --port (network.port in site.toml).",
    ),
    "port_data": (
        "network.data_port can be listened on, or the daemon listens on it.",
        "Stop the other program, or give another port (network.data_port in site.toml).",
    ),
    "data": (
        "Payloads to the live sites travel on data connections, not over p2pd (asked of a running daemon).",
        "Let the site that the text names set network.data_port, and open that port in its firewall; rounds go on"
        " without.",
    ),
    "port_api": (
        "api.port can be listened on, or the daemon answers on it.",
        "Stop the other program, or give another port with --api-port (api.port in site.toml).",
    ),
    "port_nodes": (
        "With cluster.outer_parts or cluster.stages: cluster.port can be listened on, or the daemon listens on it.",
        "Stop the other program, or give another port (cluster.port in site.toml, HEAD:PORT of `dilocoxd node`).",
    ),
    "announce": (
        "Others are told at least one address that means something beyond this machine.",
        "Set network.announce to the address that others can reach, such as the public one in front of a NAT.",
    ),
    "bootstrap": (
        "At least one address in network.bootstrap accepts a TCP connection.",
        "Ask an operator of the run for a current join line, and check firewalls on the way.",
    ),
    "reach": (
        "A peer can connect to the addresses that this site announces (asked of a running daemon).",
        "Open network.port in firewall and router, set network.announce, or use network.relays and nat_port_map.",
    ),
    "port_map": (
        "With network.nat_port_map: the router opened a port (asked of a running daemon).",
        "Turn on UPnP or NAT-PMP in the router and start the daemon again, or forward TCP network.port there and set"
        " network.announce.",
    ),
    "ways": (
        "Live sites are connected directly, not through a relay (asked of a running daemon).",
        "Forward TCP network.port to one of the two sites, or set network.nat_port_map there; rounds go on without, at"
        " the relay's speed.",
    ),
    "clock": (
        "The clock is synchronised and within 10 s of the peers.",
        "Start a time service where the clock is off: `timedatectl set-ntp true`, or install chrony.",
    ),
    "disk": (
        "Room for three snapshots and at least 2 GB in the run directory.",
        "Free space, or move the run directory to a larger disk.",
    ),
    "memory": (
        "Memory for the outer state (5 x fp32 parameters) and the trainers.",
        "Use a machine with more memory, fewer stages on this one, or a smaller model.",
    ),
    "threads": (
        "The threads of all stages fit the cores, and so do those of all outer parts.",
        "Set parallel.threads_per_rank lower, or to 0: cores / stages; and workers.outer_parts x workers.outer_threads"
        " to no more than there are cores.",
    ),
    "shm": (
        "Shared memory (/dev/shm) of at least 64 MB per trainer process, which gloo and NCCL use.",
        "In containers: `--shm-size=1g`; otherwise `mount -o remount,size=1g /dev/shm`.",
    ),
    "files": (
        "The hard limit allows at least 4096 open files; the daemon raises the soft one by itself.",
        "`ulimit -H -n 65536` as root in the shell that starts the daemon, or LimitNOFILE=65536 in the service.",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    level: Level
    text: str

    @property
    def remedy(self) -> str:
        """What to do; empty when nothing is wrong."""
        return FINDINGS[self.check][1] if self.level in ("warning", "error") else ""
