"""A worker that does what its environment says, to look at a forked process from inside and outside.

PROBE: `look` writes what it finds as JSON to its output; `wait` waits to be killed, or for SIGHUP; `raise` fails;
`exit` leaves with PROBE_STATUS; `kill` kills itself with signal PROBE_STATUS.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Exit status."""
    status = int(os.environ.get("PROBE_STATUS", "0"))
    match os.environ["PROBE"]:
        case "look":
            json.dump(found(), sys.stdout)
        case "wait":
            signal.signal(signal.SIGHUP, lambda _number, _frame: None)
            signal.pause()
        case "raise":
            raise RuntimeError("the probe was told to fail")
        case "kill":
            os.kill(os.getpid(), status)
    return status


def found() -> dict[str, Any]:
    """This process as it sees itself."""
    return {
        "environment": dict(os.environ),
        "session": os.getsid(0),
        "pid": os.getpid(),
        "descriptors": [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.exists()],
        "torch": torch_state() if "torch" in sys.modules else None,
        "imports": imports_of_a_family() if "dilocoxd.models.hf" in sys.modules else [],
    }


def imports_of_a_family() -> list[str]:
    """What a worker has still to load for a model of transformers."""
    from dilocoxd.config.hugging_face import canonical_config, sizes
    from dilocoxd.models import ModelConfig, param_specs
    from tests.unit.models.families import FAMILY_CONFIGS

    table, before = FAMILY_CONFIGS["qwen3 wide heads"], {*sys.modules}
    assert param_specs(ModelConfig(kind="hf", seq_len=8, config=canonical_config(table), **sizes(table)))
    return sorted({*sys.modules} - before)


def torch_state() -> dict[str, Any]:
    """What a fork must not have inherited, and that it may still have threads of its own."""
    import torch

    torch.set_num_threads(2)
    torch.ones(256, 256) @ torch.ones(256, 256)
    return {"is_cuda_open": torch.cuda.is_initialized(), "num_threads": torch.get_num_threads()}
