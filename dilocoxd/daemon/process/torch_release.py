"""Which release of torch is installed, without loading it."""

from importlib.metadata import PackageNotFoundError, version


def torch_release() -> str:
    """`2.13.0`, whatever it was built for; empty: nobody can tell."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""
