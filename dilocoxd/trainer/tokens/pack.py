"""`dilocoxd data pack`: text files to a token store, piece by piece in several processes.

A piece that is done is noted in ``OUT/.pack``; who is killed goes on behind what is noted. The store is there when its
index.json is, which is written last.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from tokenizers import Tokenizer

from dilocoxd.config.tokens.files import StoreFiles
from dilocoxd.errors import ConfigError, StoreError, reason_of
from dilocoxd.ipc.child import die_with_parent
from dilocoxd.store.durable import write_file
from dilocoxd.trainer.tokens.chat import ChatEncoder
from dilocoxd.trainer.tokens.encode import WORK, PackedPiece, PackSettings, pack_piece, packed_before
from dilocoxd.trainer.tokens.folders import require_free
from dilocoxd.trainer.tokens.inputs import LINES_SUFFIXES, TextFile, TextPiece, cut, list_inputs, splits_of
from dilocoxd.trainer.tokens.limits import bound_memory
from dilocoxd.trainer.tokens.store import HELD, INDEX, TOKENIZER, TRAIN, StoreIndex
from dilocoxd.trainer.tokens.tried import remember, survived
from dilocoxd.trainer.tokens.vocabulary import (
    end_token,
    load_tokenizer,
    num_ids,
    token_dtype,
    tokenizer_digest,
    tokenizer_file,
)

_PLAN: Final = "plan.json"
_LOCK: Final = "lock"

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes of all)."""


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What the user chose."""

    tokenizer: Path
    """tokenizer.json, or a folder with one."""
    field: str = "text"
    eos: str = ""
    """Token behind each document; empty: what the tokenizer's configuration names."""
    held_fraction: float = 0.01
    num_processes: int = 1
    is_chat: bool = False
    """Inputs are lines of JSON with messages; only answers are trained."""


def pack(
    inputs: Sequence[Path], out: Path, options: PackOptions, tell: Callable[[str], None], progress: Progress
) -> str:
    """Pack `inputs` into a store at `out`, going on with what an earlier call left there; sha256 of the store, hex.

    Raises ConfigError, StoreError.
    """
    require_free(out, plan=out / WORK / _PLAN)
    files, left_out = list_inputs(inputs)
    for suffix, count in sorted(left_out.items()):
        tell(f"left out: {count} files *{suffix}, which are no text that can be packed")
    for folder, splits in splits_of(inputs):
        tell(
            f"{folder}: a data set with the splits {', '.join(splits)}, and all of them are packed; give"
            f" {folder / splits[-1]} for that one alone"
        )
    tokenizer = load_tokenizer(options.tokenizer)
    eos = None if options.is_chat else end_token(tokenizer, options.tokenizer, options.eos)
    if options.is_chat:
        _check_chat(files, options)
    elif eos is None:
        tell("this tokenizer names no end of text: documents follow each other without one; choose a token with --eos")
    settings = PackSettings(
        str(tokenizer_file(options.tokenizer)),
        token_dtype(num_ids(tokenizer)).__name__,
        eos,
        options.field,
        options.held_fraction,
        options.is_chat,
    )
    plan: dict[str, object] = {
        "files": [(str(file.path), file.num_bytes, file.modified_ns) for file in files],
        "settings": {**asdict(settings), "tokenizer": tokenizer_digest(tokenizer)},
    }
    is_ours = not out.exists()
    with _locked(out):
        _agree(out, plan)
        try:
            packed = _pack_pieces(cut(files), out, settings, options.num_processes, tell, progress)
            return _finish(out, packed, settings, tokenizer, tell)
        except ConfigError:
            # Whoever mends the inputs has other ones then, of which no piece that was made here is.
            _remove(out)
            if is_ours and not any(out.iterdir()):
                with suppress(OSError):  # it may have become somebody's working directory meanwhile
                    out.rmdir()
            raise


def _remove(out: Path) -> None:
    if (out / INDEX).exists():
        return  # a finished store, whoever made it
    for path in [path for part in (TRAIN, HELD) for path in out.glob(f"{part}-*")]:
        path.unlink()
    shutil.rmtree(out / WORK)


def _check_chat(files: Sequence[TextFile], options: PackOptions) -> None:
    other = next((file.path for file in files if file.kind not in LINES_SUFFIXES), None)
    if other is not None:
        raise ConfigError(f"{other}: --chat packs lines of JSON ({', '.join(LINES_SUFFIXES)}) only; convert it first")
    if not options.tokenizer.is_dir():
        raise ConfigError(
            f"--tokenizer {options.tokenizer}: --chat needs its chat template; give the tokenizer's folder"
        )
    ChatEncoder(options.tokenizer)  # raises, before anything is packed


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """`out`, made if need be, belongs to this process, and is still free. Raises ConfigError."""
    try:
        (out / WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made ({error.strerror}); give another OUT") from error
    with _take_lock(out):
        try:
            # Again: another may have finished since the inputs were listed.
            require_free(out, plan=out / WORK / _PLAN)
        except ConfigError:
            shutil.rmtree(out / WORK, ignore_errors=True)
            raise
        yield


def _take_lock(out: Path) -> TextIO:
    path = out / WORK / _LOCK
    try:
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process that ended since removes its folder, and this lock would be on a file without a name.
        if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as error:
        raise ConfigError(f"{out} is being packed by another process; wait for it, or give another folder") from error
    return file


def _agree(out: Path, plan: dict[str, object]) -> None:
    """What is there must come from the same inputs with the same settings."""
    path = out / WORK / _PLAN
    data = json.dumps(plan).encode()
    if not path.exists():
        write_file(path, data)
    elif path.read_bytes() != data:
        raise ConfigError(
            f"{out} holds an unfinished packing of other inputs or options; repeat that command, or remove the folder"
        )


def _pack_pieces(
    pieces: list[TextPiece],
    out: Path,
    settings: PackSettings,
    num_processes: int,
    tell: Callable[[str], None],
    progress: Progress,
) -> list[PackedPiece]:
    found = (packed_before(out, piece, settings) for piece in pieces)
    done = [packed for packed in found if packed is not None]
    if done:
        tell(f"going on: {len(done)} of {len(pieces)} pieces were packed before")
    there = {packed.number for packed in done}
    rest = [piece for piece in pieces if piece.number not in there]
    num_bytes = sum(packed.num_bytes for packed in done)
    total = sum(piece.num_bytes for piece in pieces)
    progress(num_bytes, total)
    for packed in _packing(rest, out, settings, num_processes):
        done.append(packed)
        num_bytes += packed.num_bytes
        progress(num_bytes, total)
    return sorted(done, key=lambda packed: packed.number)


def _packing(pieces: list[TextPiece], out: Path, settings: PackSettings, num: int) -> Iterator[PackedPiece]:
    """As they are done. One process that would do all of it is this one: to start another takes longer than to pack a
    small text. Raises StoreError."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process packs on one core
    num = min(num, len(pieces))
    try:
        if num > 1:
            yield from _in_processes(pieces, out, settings, num)
        else:
            yield from (pack_piece(out, piece, settings) for piece in pieces)
    except MemoryError as error:
        raise ConfigError(
            "a text takes more memory than any does: a tokenizer can make so much of a little text, and a file can"
            " unpack to it; take that file out, or give another tokenizer"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot write to {out}: {reason_of(error)}; free space, then repeat the command, it goes on"
        ) from error


def _begin(parent: int, tried: tuple[bytes, ...]) -> None:
    """A process that packs."""
    die_with_parent(parent)
    remember(tried)
    bound_memory()


def _in_processes(pieces: list[TextPiece], out: Path, settings: PackSettings, num: int) -> Iterator[PackedPiece]:
    # Forked children of a process with threads can hang; each loads its own tokenizer.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num, context, _begin, (os.getpid(), survived())) as pool:
        try:
            for future in as_completed(_given_out(pool, pieces, out, settings)):
                yield future.result()
        except BrokenProcessPool as error:
            raise StoreError(
                "a process that packs was killed (no memory, or a tokenizer that comes to no end?); repeat the command,"
                " it goes on"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _given_out(
    pool: ProcessPoolExecutor, pieces: list[TextPiece], out: Path, settings: PackSettings
) -> list[Future[PackedPiece]]:
    """Raises BrokenProcessPool."""
    try:
        return [pool.submit(pack_piece, out, piece, settings) for piece in pieces]
    except OSError as error:
        if error.errno is not None:
            raise  # of the system; a pool that breaks meanwhile has closed the pipe that wakes it, and has no number
        raise BrokenProcessPool(str(error)) from error


def _finish(
    out: Path, packed: list[PackedPiece], settings: PackSettings, tokenizer: Tokenizer, tell: Callable[[str], None]
) -> str:
    shards = sorted(
        (shard for piece in packed for shard in piece.shards), key=lambda s: (s.name.startswith(HELD), s.name)
    )
    index = StoreIndex(settings.dtype, num_ids(tokenizer), settings.eos, tokenizer_digest(tokenizer), tuple(shards))
    num_empty = sum(piece.num_empty for piece in packed)
    what = "conversations without an answer" if settings.is_chat else "empty documents"
    left_out = f"left out: {num_empty} {what}"
    if not index.of_part(TRAIN):
        if index.of_part(HELD):
            raise ConfigError(f"{out}: all documents are held out; lower --held-out, or pack more documents")
        raise ConfigError(f"{out}: there is no text to train on in these files ({left_out}); give others")
    if settings.held_fraction and not index.of_part(HELD):
        tell("no document was held out: there will be no validation loss; raise --held-out, or pack more documents")
    if num_empty:
        tell(left_out)
    write_file(out / TOKENIZER, tokenizer.to_str().encode())
    StoreFiles(out, index, {}).check()
    write_file(out / INDEX, index.canonical_bytes())
    shutil.rmtree(out / WORK, ignore_errors=True)
    return index.sha256()
