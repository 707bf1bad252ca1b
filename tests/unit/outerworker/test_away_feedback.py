"""What a node calls its feedback files: one for each phase and content, and that of the head's file is never lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dilocoxd.outerworker.away.files import FEEDBACK, Files
from dilocoxd.store.tensor_header import encode_header
from dilocoxd.wire.local.outer_worker import ContentItem, LoadState, RestoreSite, SaveSite

THERE = Path("/on/the/node")


def files() -> Files:
    nothing = cast(Any, None)  # paths alone are asked for here
    return Files(nothing, nothing, THERE)


def head_has(path: Path, request: SaveSite) -> None:
    """The file that the head's own part would have written by now."""
    content = " ".join(f"{item.phase}:{item.times}" for item in request.content)
    path.write_bytes(encode_header([], {"phase": str(request.phase), "content": content, "in_flight": "-1"}))


def named(request: SaveSite | RestoreSite) -> str:
    path = Path(files().named(request).path)
    assert path.parent == THERE
    return path.name


def test_what_the_head_has_is_kept_whatever_phases_follow_each_other(tmp_path: Path) -> None:
    ours = tmp_path / "feedback.safetensors"
    first = SaveSite(0, str(ours), 4, (ContentItem(3, 1),))
    assert files().kept(first) is not None and not files().kept(first).names, "the head has none yet"  # type: ignore[union-attr]
    head_has(ours, first)
    # A phase was skipped, so that both are even; and the same phase again, with what came back into it.
    for later in (replace(first, phase=6), replace(first, content=(ContentItem(2, 1), ContentItem(3, 1)))):
        kept = files().kept(later)
        assert kept is not None and kept.prefix == FEEDBACK
        assert kept.names == (named(first),) and named(later) not in kept.names
        assert named(later).startswith(FEEDBACK)
        assert named(RestoreSite(0, str(ours), 4)) == named(first), "the head's file decides which one is restored"
    head_has(ours, replace(first, phase=6))
    assert named(RestoreSite(0, str(ours), 6)) == named(replace(first, phase=6))


def test_file_of_the_head_that_cannot_be_read_fits_none_of_the_node(tmp_path: Path) -> None:
    ours = tmp_path / "feedback.safetensors"
    for spoil in (None, b"", b"no header at all"):
        if spoil is not None:
            ours.write_bytes(spoil)
        assert named(RestoreSite(0, str(ours), 4)) == f"{FEEDBACK}none"
    assert files().kept(LoadState(0, "")) is None
