"""What daemon and trainers agree on for a profile: where its files lie. RUN_DIR/profiles has a folder for each."""

from pathlib import Path


def profiles_folder(run_directory: Path) -> Path:
    """Of all profiles that are kept."""
    return run_directory / "profiles"


def trace_name(stage_rank: int) -> str:
    """File with what one rank recorded: a Chrome trace, packed."""
    return f"rank{stage_rank}.json.gz"
