"""A tokenizer and documents for tests of token stores."""

import json
from pathlib import Path

from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import TokenStore, open_store

NUM_DOCUMENTS = 300
DOCUMENTS = [f"Document {n} says that {n} plus {n} is {2 * n}.\n" * (1 + n % 7) for n in range(NUM_DOCUMENTS)]


def write_tokenizer(folder: Path) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json; "<eos>" ends a document."""
    path = folder / "tokenizer"
    path.mkdir()
    tokenizer = train_tokenizer(DOCUMENTS, 300)
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<eos>"}}))
    return path


def write_lines(path: Path, documents: list[str] = DOCUMENTS) -> Path:
    """A .jsonl file."""
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(documents)))
    return path


def packed(
    folder: Path, inputs: list[Path], *, name: str = "store", held: float = 0.1, processes: int = 1
) -> TokenStore:
    """A store of `inputs`, with the tokenizer of `folder`."""
    options = PackOptions(folder / "tokenizer", held_fraction=held, num_processes=processes)
    pack(inputs, folder / name, options, lambda text: None, lambda done, total: None)
    return open_store(folder / name)
