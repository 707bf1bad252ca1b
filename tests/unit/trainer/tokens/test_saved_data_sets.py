"""A folder that Hugging Face `datasets` 5.2.0 saved (saved_by_datasets): two splits, one of them shuffled, filtered and
in two files.

    rows = [{"id": n, "text": f"Document {n} says that {n} plus {n} is {2 * n}.\\n"} for n in range(12)]
    whole = Dataset.from_list(rows)
    train = whole.shuffle(seed=3).filter(lambda row: row["id"] % 2 == 0)
    test = whole.filter(lambda row: row["id"] in (1, 3))
    DatasetDict({"train": train, "test": test}).save_to_disk(folder, num_shards={"train": 2, "test": 1})
"""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import TRAIN, open_store
from tests.unit.trainer.tokens.shard_ids import ids_of
from tests.unit.trainer.tokens.texts import DOCUMENTS, write_tokenizer

SAVED = Path(__file__).with_name("saved_by_datasets")
EVEN = [0, 2, 4, 6, 8, 10]
SPLITS_WORDS = "saved_by_datasets: a data set with the splits test, train, and all of them are packed; give"


@pytest.mark.parametrize(("split", "numbers"), [("train", EVEN), ("test", [1, 3]), ("", sorted([*EVEN, 1, 3]))])
def test_documents_of_a_saved_data_set_are_packed(tmp_path: Path, split: str, numbers: list[int]) -> None:
    write_tokenizer(tmp_path)
    said: list[str] = []
    options = PackOptions(tmp_path / "tokenizer", held_fraction=0.0)
    pack([SAVED / split], tmp_path / "store", options, said.append, lambda done, total: None)
    store = open_store(tmp_path / "store")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    ids = np.concatenate([ids_of(store, s, 0, s.num_tokens) for s in store.index.of_part(TRAIN)])
    texts = tokenizer.decode(ids.tolist(), skip_special_tokens=False).split("<eos>")
    assert sorted(texts) == sorted([*(DOCUMENTS[n].splitlines(keepends=True)[0] for n in numbers), ""])
    assert any(SPLITS_WORDS in line for line in said) == (not split)
