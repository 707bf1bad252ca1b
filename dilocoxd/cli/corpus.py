"""The text of a run: fixed by hashes when the run is made, at hand before a joining site fetches anything else.

numpy and tokenizers are never loaded here: `python -m dilocoxd.trainer.prepare` does the work in a process of its own.
"""

import functools
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.cli.shell.helper_ends import cause_of, helper
from dilocoxd.cli.shell.step_announcer import StepAnnouncer
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.sources import SourceSection, common_end, require_read, store_remedy, weight_min
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import sources_here, store_path, volumes_here
from dilocoxd.config.tokens.files import files_of, require_volumes
from dilocoxd.config.tokens.index import INDEX, read_index
from dilocoxd.errors import ConfigError
from dilocoxd.store.prepared import at_home, chosen_cache_dir, find_prepared

TEXT_PREFIX = "text:"
NAMES = ("english", "gcide", "python-doc", "linux-doc", "stdlib")
"""Corpora that every machine can try to make by their names (trainer/data/corpora.py)."""


def named_paths(choices: Iterable[str]) -> dict[str, str]:
    """Names and absolute paths of all `--data NAME=PATH`; a PATH alone is named after itself. Raises ConfigError."""
    found: dict[str, str] = {}
    for choice in choices:
        name, equals, path = choice.partition("=")
        if not equals:
            name, path = name_of(choice), choice
        absolute = at_home(path).absolute()
        if not path or not absolute.exists():  # an empty one, as of a variable that is not set, would be this folder
            raise ConfigError(f"--data {choice!r}: there is no {absolute}; give the path of a text file or folder")
        if name in NAMES:
            raise ConfigError(f"--data {choice!r}: {name} is a corpus that comes with dilocoxd; choose another name")
        if found.setdefault(name, str(absolute)) != str(absolute):
            raise ConfigError(f"--data {choice!r}: {name} is {found[name]} already; give each a name of its own")
    return found


def name_of(path: str) -> str:
    """What a run calls the text at `path` if nobody says otherwise."""
    stem = re.sub(r"[^a-z0-9]+", "-", at_home(path).absolute().stem.lower()).strip("-")
    return stem[:32].rstrip("-") if stem and stem not in NAMES else "text"


def is_store(path: str) -> bool:
    """Whether `dilocoxd data pack` or `adopt` made what lies there."""
    return (Path(path) / INDEX).is_file()


@dataclass(frozen=True, slots=True)
class _Index:
    """What of a store's index.json counts here; `shards`: the part of each, and its tokens."""

    sha256: str
    vocab_size: int
    eos: int | None
    shards: tuple[tuple[str, int], ...]

    def windows(self, seq_len: int) -> tuple[int, int]:
        """Samples to train on and held out ones; what else may be there is refused when the shards are read."""
        counts = [sum(count for part, count in self.shards if part == wanted) for wanted in ("train", "held")]
        return max(0, (counts[0] - 1) // seq_len), max(0, (counts[1] - 1) // seq_len)


def _index_of(name: str, path: str) -> _Index:
    """Of the token store at `path`. Raises ConfigError."""
    file = Path(path) / INDEX
    try:
        seen = file.stat()
        return _read_index(file, (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))
    except OSError as error:
        raise ConfigError(
            f"--data {name}={path}: this is no token store ({error.strerror}); give one that `dilocoxd data pack` made"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"--data {name}={path}: {error}") from error


@functools.lru_cache(maxsize=64)
def _read_index(file: Path, _state: tuple[int, ...]) -> _Index:
    """Once for each state of the file: a command asks three times, and the index of a large store has megabytes."""
    index = read_index(file)
    shards = tuple((shard.name.partition("-")[0], shard.num_tokens) for shard in index.shards)
    return _Index(index.sha256(), index.vocab_size, index.eos, shards)


def sources_at(
    paths: Mapping[str, str], vocab_size: int, named: Iterable[SourceSection] = ()
) -> tuple[SourceSection, ...]:
    """The token stores of a new run; those that its run.toml has `named` keep their weight. Raises ConfigError.

    The weight of a tiny one of which run.toml says nothing is raised so far that it is read.
    """
    found = [source_at(name, path, vocab_size) for name, path in paths.items()]
    least = weight_min([source.weight for source in found])
    chosen = {(source.name, source.sha256): source.weight for source in named}
    weights = [chosen.get((source.name, source.sha256), max(source.weight, least)) for source in found]
    weighed = [source.model_copy(update={"weight": weight}) for source, weight in zip(found, weights, strict=True)]
    require_read(weighed)
    return tuple(weighed)


def source_at(name: str, path: str, vocab_size: int) -> SourceSection:
    """The token store at `path` as the manifest names it; its weight is its length. Raises ConfigError."""
    index = _index_of(name, path)
    if index.vocab_size > vocab_size:
        raise ConfigError(
            f"--data {name}={path}: the store has {index.vocab_size} kinds of tokens, model.vocab_size = {vocab_size};"
            f" use --set model.vocab_size={index.vocab_size}"
        )
    num_tokens = sum(count for part, count in index.shards if part == "train")
    fields = {"name": name, "sha256": index.sha256, "num_tokens": num_tokens}
    return validated(SourceSection, {**fields, "weight": float(num_tokens)}, source=f"--data {name}={path}")


def require_enough(manifest: Manifest, paths: Mapping[str, str]) -> None:
    """Refuse token stores that give less than one batch, or nothing to validate on. Raises ConfigError."""
    seq_len, batch = manifest.model.seq_len, manifest.inner.batch_sequences
    counts = {name: _index_of(name, path).windows(seq_len) for name, path in paths.items()}
    for name, (train, _) in counts.items():
        if not train:
            raise ConfigError(f"--data {name}={paths[name]}: no window of {seq_len + 1} tokens; pack longer documents")
    total = sum(train for train, _ in counts.values())
    if total < batch:
        raise ConfigError(
            f"--data {', '.join(counts)}: {total} samples of {seq_len} tokens are less than one batch of {batch}"
            " (inner.batch_sequences); pack more text"
        )
    _require_held_out(manifest, counts)


def _require_held_out(manifest: Manifest, counts: Mapping[str, tuple[int, int]]) -> None:
    """Refuse stores that leave a run which evaluates nothing to evaluate on. Raises ConfigError."""
    if manifest.data.evaluate_every_rounds and not any(held for _, held in counts.values()):
        raise ConfigError(
            f"--data {', '.join(counts)}: nothing of {manifest.model.seq_len + 1} tokens is held out for validation;"
            " pack again with a larger --held-out, or more documents, or make the run with --set"
            " data.evaluate_every_rounds=0"
        )


def require_documents(manifest: Manifest, paths: Mapping[str, str]) -> None:
    """Refuse data.document_mask where nothing tells documents apart. Raises ConfigError.

    `paths`: the token stores that are here. Those that run.toml names and that are not here yet are looked at later.
    """
    if not manifest.data.document_mask:
        return
    if manifest.model.kind == "external" or not (paths or manifest.data.sources):
        what = "the training loop is your own" if manifest.model.kind == "external" else "the run trains on one text"
        raise ConfigError(
            f"data.document_mask = true keeps the documents of token stores apart, but {what}; remove it, or give"
            " stores that `dilocoxd data pack` made"
        )
    if paths:
        common_end({name: _index_of(name, path).eos for name, path in paths.items()})


def require_cut(manifest: Manifest, paths: Mapping[str, str]) -> None:
    """Refuse data.volumes where the shared token stores, at `paths`, cannot be cut so. Raises ConfigError."""
    count = manifest.data.volumes
    if count > 1 and not (manifest.data.sources and manifest.data.has_leases):
        raise ConfigError(
            f"data.volumes = {count} cuts the token stores that sites share, and this run has none; remove it, or give"
            " stores with --data"
        )
    for name, path in paths.items() if count > 1 else ():
        require_volumes(name, read_index(Path(path) / INDEX), count, manifest.model.seq_len)


def _require_enough_text(manifest: Manifest, train: int, held: int) -> None:
    seq_len, batch = manifest.model.seq_len, manifest.inner.batch_sequences
    name = manifest.data.corpus
    if train < batch * seq_len + 1:
        raise ConfigError(
            f"the text {name!r} has {train} tokens to train on, less than one batch of {batch} x {seq_len}"
            " (inner.batch_sequences, model.seq_len); give more text"
        )
    if held < seq_len + 1:
        raise ConfigError(
            f"the text {name!r} has {held} held-out tokens, less than one window of {seq_len + 1}: give more text, or"
            " raise data.validation_fraction"
        )


def require_names(manifest: Manifest, paths: Mapping[str, str]) -> None:
    """Refuse a path whose name is that of no text of the run: it would never be read. Raises ConfigError."""
    known = [source.name for source in manifest.data.sources] or [manifest.data.corpus]
    for name in sorted(paths.keys() - set(known)):
        raise ConfigError(
            f"--data {name}={paths[name]}: {name!r} is no text of this run; it has: {', '.join(known)}; use that name"
        )


def require_there(manifest: Manifest, site: SiteConfig) -> None:
    """Before a known run starts again: its stores, or the text that was not prepared yet, can be read.

    Raises ConfigError.
    """
    if manifest.model.kind == "external":
        return
    if manifest.data.sources:
        have_stores(manifest, site)
        return
    path = site.paths.corpora.get(manifest.data.corpus)
    cache = chosen_cache_dir(site.paths.cache)
    if path is None or find_prepared(cache, manifest.data.sha256, manifest.tokenizer.sha256) is not None:
        return
    place = at_home(path)
    try:
        if place.is_dir():
            next(place.iterdir(), None)
        else:
            place.open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"the run's text {manifest.data.corpus!r} cannot be read at {path} ({error.strerror}); say where it is with"
            f" --data {manifest.data.corpus}=PATH"
        ) from error


def is_path(corpus: object) -> bool:
    """Whether `data.corpus` is a path of its founder's machine and not a name."""
    return isinstance(corpus, str) and (corpus.startswith(TEXT_PREFIX) or "/" in corpus)


def with_text_hashes(manifest: Manifest, site: SiteConfig, tokenizer: str = "") -> Manifest:
    """`manifest` with data.sha256 and tokenizer.sha256 filled in; progress goes to stderr.

    Nothing is done if both are there already. Raises ConfigError when the corpus cannot be had.
    """
    is_fixed = bool(manifest.data.sha256 and manifest.tokenizer.sha256)
    if is_fixed or manifest.data.sources or manifest.model.kind == "external":
        return manifest
    found, problem = prepare_text(manifest, site, *(("--tokenizer", tokenizer) if tokenizer else ()))
    if problem:
        raise ConfigError(problem)
    _require_enough_text(manifest, int(found["num_train_tokens"]), int(found["num_validation_tokens"]))
    data = manifest.data.model_copy(update={"sha256": found["data_sha256"]})
    named = manifest.tokenizer.model_copy(update={"sha256": found["tokenizer_sha256"]})
    return manifest.model_copy(update={"data": data, "tokenizer": named})


def with_own_text_hashes(manifest: Manifest, site: SiteConfig, tokenizer: str = "") -> Manifest:
    """The same for a text or tokenizer of the run's own, which nobody else can make by its name."""
    is_own = manifest.data.corpus in site.paths.corpora or bool(tokenizer)
    return with_text_hashes(manifest, site, tokenizer) if is_own else manifest


def unnamed_text(manifest: Manifest) -> list[str]:
    """What is wrong with a run that names its text by a word alone, as `dilocoxd init` makes it."""
    is_named = manifest.data.sources or (manifest.data.sha256 and manifest.tokenizer.sha256)
    if is_named or manifest.model.kind == "external":
        return []
    return [
        f"run.toml says what the text {manifest.data.corpus!r} is by this name alone: a site whose machine makes"
        " another one of it trains the shared model on other tokens, and nobody is told; `dilocoxd start --no-run` in"
        " place of `dilocoxd init` makes a run that names text and tokenizer by their hashes"
    ]


def have_stores(manifest: Manifest, site: SiteConfig) -> None:
    """See that a known run's stores are here, and the run's. Raises ConfigError."""
    counts: dict[str, tuple[int, int]] = {}
    sources = sources_here(manifest, site)
    for source in sources:
        path = store_path(source, site)
        _same_store(source, path, manifest.model.vocab_size)
        files_of(Path(path)).check(1 if source.private else manifest.data.num_volumes)
        counts[source.name] = _index_of(source.name, path).windows(manifest.model.seq_len)
        if source.private and not counts[source.name][0]:
            raise ConfigError(
                f"--data {source.name}={path}: no window of {manifest.model.seq_len + 1} tokens to train on; give"
                " another of the run's stores"
            )
    require_cut(manifest, {source.name: store_path(source, site) for source in sources if not source.private})
    volumes_here(manifest, site)
    _require_held_out(manifest, counts)
    require_documents(manifest, {source.name: store_path(source, site) for source in sources})


def require_named(manifest: Manifest, site: SiteConfig) -> None:
    """Before run.toml is fixed: where it names private stores, those that are here are the ones. Raises ConfigError."""
    for source in manifest.data.sources if manifest.data.has_private else ():
        path = site.paths.corpora.get(source.name)
        if path is None:
            continue
        found = _same_store(source, path, manifest.model.vocab_size)
        if found.num_tokens != source.num_tokens:
            raise ConfigError(
                f"--data {source.name}={path}: it has {found.num_tokens} tokens to train on, run.toml says num_tokens ="
                f" {source.num_tokens}; correct that before the start"
            )


def _same_store(source: SourceSection, path: str, vocab_size: int) -> SourceSection:
    """What lies at `path`, with the hash that the manifest names. Raises ConfigError."""
    remedy = store_remedy(is_private=source.private)
    if not is_store(path):
        raise ConfigError(f"--data {source.name}={path}: this is no token store; {remedy}")
    found = source_at(source.name, path, vocab_size)
    if found.sha256 != source.sha256:
        raise ConfigError(
            f"--data {source.name}={path}: its hash is {found.sha256}, that of the run's store is {source.sha256};"
            f" {remedy}"
        )
    return found


def prepare_text(manifest: Manifest, site: SiteConfig, *more: str) -> tuple[dict[str, str], str]:
    """(what was found, why it failed or empty)."""
    with tempfile.TemporaryDirectory(prefix="dilocoxd-start-") as folder:
        run_toml = Path(folder) / "run.toml"
        run_toml.write_text(manifest.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "dilocoxd.trainer.prepare", "--run-toml", str(run_toml), *more]
        command += ["--cache", str(chosen_cache_dir(site.paths.cache))]
        if manifest.data.corpus in site.paths.corpora:
            command += ["--path", site.paths.corpora[manifest.data.corpus]]
        return _run(command)


def say_text(text: str) -> None:
    """One line of what is done with the text."""
    tell(f"text: {text}")


def _run(command: list[str]) -> tuple[dict[str, str], str]:
    with helper(command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last = ""
        with StepAnnouncer(say_text, "looking for the training text") as steps:
            for line in process.stderr:
                last = line.strip() or last
                if not last.startswith("error: "):
                    steps.note(last)
        answer = process.stdout.read()
    if process.returncode:
        if last.startswith("error: "):
            return {}, last.removeprefix("error: ")
        return {}, f"preparing the text failed: {cause_of(process.returncode, last)}"
    return json.loads(answer), ""
