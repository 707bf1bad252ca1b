"""Imports hivemind's p2p and dht parts without the rest: 38 MB and 0.2 s instead of 278 MB and 2 s (no torch).

hivemind's package files import everything, torch included. Giving the packages empty parents first lets their leaves be
imported alone. hivemind is pinned to the exact version that this was tried with.
"""

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

from dilocoxd.errors import ConfigError


def import_slim() -> None:
    """Give hivemind's packages empty parents, so that importing a leaf does not run their __init__ (and torch)."""
    if "hivemind" in sys.modules:
        return
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")
    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("package hivemind is not installed; install dilocoxd with its dependencies")
    root = Path(spec.submodule_search_locations[0])
    parents = {"hivemind": root, "hivemind.utils": root / "utils", "hivemind.dht": root / "dht"}
    for name, path in parents.items():
        module = types.ModuleType(name)
        module.__path__ = [str(path)]
        module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
        sys.modules[name] = module
    for leaf in ("asyncio", "logging", "serializer", "timed_storage"):
        loaded = importlib.import_module(f"hivemind.utils.{leaf}")
        for name in ("get_logger", "MSGPackSerializer", "SerializerBase", "DHTExpiration", "ValueWithExpiration",
                     "get_dht_time", "MAX_DHT_TIME_DISCREPANCY_SECONDS", "TimedStorage"):  # fmt: skip
            if hasattr(loaded, name):
                setattr(sys.modules["hivemind.utils"], name, getattr(loaded, name))
