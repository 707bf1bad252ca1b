"""What parallel.compile (torch.compile) needs on a machine; asked before anything starts. Imports nothing of torch."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def missing_for_compiling(device: str) -> str:
    """What this machine lacks to compile blocks for "cpu" or "cuda", a sentence; empty: nothing."""
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "parallel.compile = true wants the package triton with GPUs, which is missing"
    # As torch chooses: for the CPU one of C++, with Triton one of C.
    named, usual = ("CC", ("gcc", "clang")) if device == "cuda" else ("CXX", ("g++",))
    candidates = (os.environ[named],) if os.environ.get(named) else usual
    if not any(map(shutil.which, candidates)):
        return f"parallel.compile = true wants a compiler, and {' or '.join(candidates)} ({named}) is not in PATH"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"parallel.compile = true wants the headers of Python, and {header} is missing"
    return ""
