"""The daemon's half of the package must stay free of torch and numpy: memory and start-up time."""

import subprocess
import sys


def test_network_part_loads_neither_torch_nor_numpy() -> None:
    names = "('torch', 'numpy', 'hivemind.dht.node')"
    code = f"import sys, dilocoxd.swarm.service; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['hivemind.dht.node']"
