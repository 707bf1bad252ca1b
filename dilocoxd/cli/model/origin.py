"""Where a new run's model comes from: a preset's sizes, a config.json, a directory with weights, or another run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dilocoxd.cli.model.parent import Parent, parent_of
from dilocoxd.config import hugging_face
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.origin import TOKENIZER_FILE_BYTES_MAX
from dilocoxd.config.sections import own_module
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.durable import write_file
from dilocoxd.store.installed_models import installed_model
from dilocoxd.store.rundir import RunDir
from dilocoxd.trained.tokenizer import FILE_NAMES, TOKENIZER_NAME, TokenizerFiles

_CONFIG_BYTES_MAX = 4 << 20
"""Of a config.json as people write it; of what counts the manifest takes 200,000 characters."""
OWN_DATA = "own-loop"
"""data.corpus of runs whose text only their loops know."""


@dataclass(frozen=True, slots=True)
class Origin:
    """`init`: directory of a pretrained model. `config`: config.json of one from scratch. `tokenizer`: its folder, the
    one of `init` unless another is given; None: trained on the text. `parent`: a state of another run. `lora`: rank of
    an adapter that is trained in place of the model; 0: none. `own`: a model that an installed package brings."""

    init: Path | None = None
    config: Path | None = None
    tokenizer: Path | None = None
    lora: int = 0
    parent: Parent | None = None
    own: str = ""
    module: Path | None = None
    """What `dilocoxd.describe` wrote of somebody's own module."""

    @property
    def first_state(self) -> tuple[str, ...]:
        """Options of trained/incoming/first_state.py that name the weights."""
        if self.parent is not None:
            return ("--from-run", str(self.parent.path), "--round", str(self.parent.round))
        if self.module is not None:
            return ("--init", str(self.module))
        return ("--init", str(self.init)) if self.init is not None else ()

    def require_outside(self, directory: Path) -> None:
        """A start that follows a killed one clears the run directory, and must not clear what it was given. Raises
        ConfigError."""
        given = {"--init": self.init, "--config": self.config, "--tokenizer": self.tokenizer}
        for option, path in given.items():
            if path is not None and path.absolute().is_relative_to(directory.absolute()):
                raise ConfigError(
                    f"{option} {path}: lies in {directory}, the run directory itself; give --dir another directory"
                )

    def with_tokenizer_for(self, manifest: Manifest) -> tuple[Manifest, "Origin"]:
        """Both with the parent's tokenizer, if there is a parent. Raises ConfigError."""
        if self.parent is None:
            return manifest, self
        manifest, folder = self.parent.tokenized(manifest)
        return manifest, replace(self, tokenizer=folder)

    def corpora(self, manifest: Manifest) -> Mapping[str, str]:
        """Where the parent's texts lie, as far as the new run reads them."""
        return self.parent.corpora(manifest) if self.parent is not None else {}

    def applied(self, tables: Mapping[str, object]) -> dict[str, object]:
        """The tables of a preset with this model and tokenizer in it; the parent's own. Raises ConfigError."""
        if self.parent is not None:
            return self.parent.tables()
        found = dict(tables)
        preset = tables.get("model")
        sizes: dict[str, object] = dict(preset) if isinstance(preset, dict) else {}
        if self.module is not None:
            return found | _own_loop_tables(self.module, int(str(sizes.get("seq_len", 0))))
        path = self.init / "config.json" if self.init is not None else self.config
        if path is not None:
            found["model"] = _model_table(path, int(str(sizes.get("seq_len", 0))))
        if self.own:
            brought = installed_model(self.own)
            sizes |= {"kind": "python", "entry_point": brought.name, "entry_sha256": brought.sha256}
            found["model"] = sizes
        if self.tokenizer is not None:
            found["tokenizer"] = {"kind": "files"}
            if path is None:
                found["model"] = sizes | {"vocab_size": vocabulary_of(self.tokenizer / TOKENIZER_NAME)}
        if self.lora and self.init is not None:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.init.absolute().name)
            found["lora"] = {"rank": self.lora, "alpha": 2.0 * self.lora, "base_name": name}
        return found

    def site_settings(self) -> dict[str, object]:
        """Fields of site.toml's paths that follow."""
        if self.parent is not None:
            base = self.parent.site().paths.base
            return {"base": base} if base else {}
        return {"base": str(self.init.absolute())} if self.lora and self.init is not None else {}

    def copy_tokenizer(self, run_dir: RunDir) -> None:
        """Put the tokenizer's files into the run directory: export and a lost cache need them.

        Raises OSError, StoreError.
        """
        if self.tokenizer is None:
            return
        folder = run_dir.tokenizer
        folder.mkdir(exist_ok=True)
        for name in FILE_NAMES:
            if (self.tokenizer / name).is_file():
                write_file(folder / name, (self.tokenizer / name).read_bytes())


def origin_of(options: dict[str, object]) -> Origin:
    """What these options mean; takes them out of `options`. Raises ConfigError."""
    named = (options.pop(name, None) for name in ("init_from", "config_from", "tokenizer_from", "parent", "own"))
    init, config, tokenizer, parent, own = (one if isinstance(one, str) else "" for one in named)
    lora = options.pop("lora", None)
    module = options.pop("module", None)
    if isinstance(module, str):
        return _own_module(module, is_more_given=bool(init or config or tokenizer or lora or parent or own))
    if parent:
        if init or config or tokenizer or lora or own:
            raise ConfigError(
                "--from takes model and tokenizer from the other run; leave out --init, --config, --model, --tokenizer,"
                " --lora"
            )
        return _forked(parent_of(parent), options)
    if lora and not init:
        raise ConfigError(f"--lora {lora}: an adapter needs a model; give its directory with --init")
    if init and config:
        raise ConfigError(
            "--init and --config exclude each other: --init has a config.json of its own; leave --config out"
        )
    if own and (init or config):
        raise ConfigError(f"--model {own} starts from scratch with that model; leave out --init and --config")
    folder = _model_given(init) if init else None
    given = _tokenizer_given(tokenizer, folder)
    if given is not None:
        TokenizerFiles(given).check()
    return Origin(folder, Path(config) if config else None, given, int(str(lora or 0)), own=own)


def _require_here(option: str, folder: Path) -> None:
    """People give the name that a model has on a hub."""
    if not folder.exists():
        raise ConfigError(
            f"{option} {folder}: there is no such folder on this machine; give one that is, as"
            " `hf download NAME --local-dir DIR` makes it"
        )


def _model_given(init: str) -> Path:
    """Folder of the model."""
    folder = Path(init)
    if (folder / "config.json").is_file():
        return folder
    _require_here("--init", folder)
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(f"--init {folder}: it is an adapter; give the model that it belongs to, and --lora RANK")
    raise ConfigError(f"--init {folder}: there is no config.json in it; give the directory of a Hugging Face model")


def _tokenizer_given(tokenizer: str, model: Path | None) -> Path | None:
    """Folder of the tokenizer: that which is named, else the model's; None: it is trained on the text."""
    if tokenizer:
        _require_here("--tokenizer", Path(tokenizer))
        if not (Path(tokenizer) / TOKENIZER_NAME).is_file():
            raise ConfigError(f"--tokenizer {tokenizer}: there is no {TOKENIZER_NAME} in it; give a folder with one")
        return Path(tokenizer)
    if model is not None and not (model / TOKENIZER_NAME).is_file():
        raise ConfigError(f"--init {model}: there is no {TOKENIZER_NAME} in it; give the model's with --tokenizer")
    return model


def _own_module(folder: str, *, is_more_given: bool) -> Origin:
    if is_more_given:
        raise ConfigError(
            "--module is a model of your own; leave out --init, --config, --model, --tokenizer, --lora and --from"
        )
    return Origin(module=Path(folder))


def _forked(parent: Parent, options: dict[str, object]) -> Origin:
    """A run that goes on from `parent`; its cache, too, unless another one is asked for."""
    if not options.get("cache"):
        options["cache"] = parent.site().paths.cache or None
    return Origin(parent=parent)


def _model_table(path: Path, seq_len: int) -> dict[str, Any]:
    """The model section for a config.json; sequences as long as the preset's, if the model knows so many positions."""
    table = _read_json(path, _CONFIG_BYTES_MAX)
    try:
        text = hugging_face.canonical_config(table)
        sizes: dict[str, Any] = dict(hugging_face.sizes(table))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    longest = hugging_face.positions(table) or seq_len or 512
    return {"kind": "hf", "config": text, "seq_len": min(seq_len or 512, longest), **sizes}


def _own_loop_tables(folder: Path, seq_len: int) -> dict[str, object]:
    """Model and data sections of a run whose sites bring their own loops, and so their own text."""
    path = folder / own_module.PARAMETERS_NAME
    try:
        text = path.read_text(encoding="utf-8")
        own_module.parse_shapes(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--module {folder}: {path.name}: {reason_of(error)}; let dilocoxd.describe(module, DIR) write it"
        ) from error
    model = {"kind": "external", "config": text, "seq_len": seq_len or 1024, **own_module.PLACEHOLDER_SIZES}
    return {"model": model, "data": {"corpus": OWN_DATA}}


def vocabulary_of(path: Path) -> int:
    """Entries that an embedding needs for a tokenizer.json: its largest id and one. Raises ConfigError."""
    table = _read_json(path, TOKENIZER_FILE_BYTES_MAX)
    try:
        vocab = table["model"]["vocab"]
        ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
        ids += [token["id"] for token in table.get("added_tokens", [])]
        if other := [one for one in ids if type(one) is not int]:
            raise TypeError(f"{str(other[0])[:40]!r} is no id")
        return max(ids) + 1
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is no tokenizer ({error!r}); give a folder with a whole tokenizer.json") from error


def _read_json(path: Path, bytes_max: int) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise ValueError(f"it has more than {bytes_max >> 20} MiB")
        table = json.loads(data)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if is_missing else f"cannot be read ({error.strerror})"
        raise ConfigError(f"{path}: {reason}; give the path of a JSON file of that model on this machine") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error}); download it again") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: is no JSON table; download it again")
    return table
