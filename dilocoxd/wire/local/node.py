"""Messages between a head and a node of its site (docs/adr/0035-a-site-on-several-machines.md).

One connection carries one life of one outer part, or of the trainers of one pipeline stage. The head's end is a process
in their place, which moves what they read and write; every message is sealed with the site's node key (ipc/sealed.py).
"""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.wire.codec import Bounds, Length, Lines, Name, Registry, Uint
from dilocoxd.wire.local.registry import LOCAL_MESSAGE_BYTES_MAX

PIECE_BYTES: Final = 1 << 20
"""Of a buffer or a file, in one message."""
NODE_MESSAGE_BYTES_MAX: Final = LOCAL_MESSAGE_BYTES_MAX + 1024
Piece = Annotated[bytes, Length(0, PIECE_BYTES)]
Body = Annotated[bytes, Length(0, LOCAL_MESSAGE_BYTES_MAX)]
"""A local message as it would go over a unix socket, without its length."""
ConfigText = Annotated[bytes, Length(0, 4 << 20)]
FileName = Annotated[str, Length(1, 512)]
"""Below the folder of the part; never upwards."""
PART_PLACE: Final = "part"
STAGE_PLACE: Final = "stage"
"""What a place on a node has room for."""
NODE_MUTE: Final = "node_mute"
NODE_FULL: Final = "disk_full"
NODE_FAULTS: Final = (NODE_MUTE, NODE_FULL)
"""Kinds of WorkerFailed that tell of the node and of no worker: it answers nothing, or its disk is full."""


def other_version(*, of_head: str, of_node: str) -> str:
    """What either of the two tells the operator, who then reads what to do."""
    return f"the head runs dilocoxd {of_head}, this node {of_node}"


@dataclass(frozen=True, slots=True)
class HeadHello:
    """First sealed message, of the head: who can read it has the same key."""

    version: Name


@dataclass(frozen=True, slots=True)
class NodeHello:
    """Second, of the node: it has room for one part, or for one stage."""

    version: Name
    served: Name
    """Site and part, or stage, that this place ran last; empty: none."""
    incarnation: Name
    """What the head called the buffers of that part which are still here; empty: none are."""
    name: Name = ""
    """Of the machine, for people."""
    kind: Name = PART_PLACE
    home: Name = ""
    """Names the folder that the node runs in, which one process at a time locks."""
    process: Name = ""
    """Names the process: another one of the same machine and home has nothing that this one held in memory."""
    ran_by: Name = ""
    """Names the process that ran `served`: this one, or one before it in the same folder; empty: not known."""
    num_parts: Uint = 0
    """Places of this process for parts ..."""
    num_stages: Uint = 0
    """... and for stages."""
    memory_bytes: Uint = 0
    """Main memory that was free there before anything ran in these places; 0: not known."""
    gpu_bytes: Uint = 0
    """Memory of the smallest GPU; 0: there is none, or it is not known."""
    num_gpus: Uint = 0
    """Likewise."""
    torch: Name = ""
    """Release that is installed there; empty: not known."""
    clock_ms: Uint = 0
    """Of the machine, Unix; 0: it does not say."""


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """Answer of the head to a node that it does not let wait; it closes the connection."""

    reason: Lines
    is_final: bool = False
    """Only another start of the node, or other settings, would help."""


@dataclass(frozen=True, slots=True)
class StartPart:
    """Run this part, in buffers that are new or those of `incarnation`."""

    served: Name
    incarnation: Name
    is_new: bool
    part: Name
    """As in wire/placement.py."""
    run_toml: ConfigText
    site_toml: ConfigText


@dataclass(frozen=True, slots=True)
class StartStage:
    """Run the trainers of one pipeline stage: ranks [first_rank, first_rank + here) of `num_ranks`."""

    served: Name
    first_rank: Uint
    here: Annotated[int, Bounds(1, 4096)]
    num_ranks: Uint
    port: Annotated[int, Bounds(1, 65535)]
    """Where all ranks meet, on the head."""
    peer: Name
    """Names the site, for the order of its data."""
    run_toml: ConfigText
    site_toml: ConfigText
    grace_ms: Uint
    """So long the node bears a silence of the head's machine before it ends them."""


@dataclass(frozen=True, slots=True)
class PartFolder:
    """Answer to StartPart and StartStage: where the files of the part or stage lie on the node."""

    path: Lines


@dataclass(frozen=True, slots=True)
class ToPart:
    """A message of the daemon. Attach comes without descriptors: the node gives the part buffers of its own."""

    body: Body
    worker: Uint = 0
    """Which rank of a stage, from 0 on."""


@dataclass(frozen=True, slots=True)
class FromPart:
    """A message of the part."""

    body: Body
    worker: Uint = 0


@dataclass(frozen=True, slots=True)
class PartEnded:
    """The process is gone; nothing follows."""

    reason: Lines
    is_disk_full: bool = False
    """It could not go on, or start, for that: nobody has failed."""


@dataclass(frozen=True, slots=True)
class WriteBuffer:
    """These bytes of a buffer are so at the head."""

    name: Name
    offset: Uint
    data: Piece


@dataclass(frozen=True, slots=True)
class PunchBuffer:
    """All of it is zero."""

    name: Name


@dataclass(frozen=True, slots=True)
class MakeFile:
    """A file of this size, all holes, in the place of any other."""

    name: FileName
    size: Uint


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Bytes of a file that was made."""

    name: FileName
    offset: Uint
    data: Piece


@dataclass(frozen=True, slots=True)
class RemovePath:
    """A file or a folder with all that is in it; there need not be one."""

    name: FileName


@dataclass(frozen=True, slots=True)
class KeepFiles:
    """Of the part's files whose names begin like this, only these are of use."""

    prefix: Annotated[str, Length(1, 64)]
    names: Annotated[tuple[FileName, ...], Length(0, 8)]


@dataclass(frozen=True, slots=True)
class FetchBytes:
    """Send bytes [first, stop) of a buffer or a file, as Fetched messages in order; the last one ends at `stop`."""

    number: Uint
    is_file: bool
    name: FileName
    first: Uint
    stop: Uint


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes from `offset` on. `problem`: they cannot be read, and no more of this number follow."""

    number: Uint
    offset: Annotated[int, Bounds(0, 2**62)]
    data: Piece
    problem: Lines = ""


@dataclass(frozen=True, slots=True)
class DumpStage:
    """The trainers of the stage are silent, and will be ended: tell where they are, as HangFile messages."""


@dataclass(frozen=True, slots=True)
class HangFile:
    """What a rank of the stage told of its hang (ipc/hang_files.py); its collectives come last."""

    name: FileName
    data: Piece


NODE_MESSAGES: Final = Registry(
    {
        2: HeadHello,
        4: NodeHello,
        6: StartPart,
        8: PartFolder,
        10: ToPart,
        12: FromPart,
        14: PartEnded,
        16: WriteBuffer,
        18: PunchBuffer,
        20: MakeFile,
        22: WriteFile,
        24: RemovePath,
        26: FetchBytes,
        28: Fetched,
        30: KeepFiles,
        32: StartStage,
        34: NodeRefused,
        40: DumpStage,
        42: HangFile,
    },
    size_max=NODE_MESSAGE_BYTES_MAX,
)
