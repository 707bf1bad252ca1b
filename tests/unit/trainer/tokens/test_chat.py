"""Conversations to a token store with a loss mask: the mask is transformers' own, and only answers are trained."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer, DataCollatorWithFlattening, PreTrainedTokenizerFast
from transformers.loss.loss_utils import ForCausalLMLoss

from dilocoxd.errors import ConfigError
from dilocoxd.store import installed_models
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.sources import SourceOrder, TextSource
from dilocoxd.trainer.data.targets import NOT_TRAINED, PartLoss, cross_entropy
from dilocoxd.trainer.tokens.chat import ChatEncoder
from dilocoxd.trainer.tokens.describe import check_hashes, describe
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import open_store

PLAIN = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "<|end|>\n{% endgeneration %}{% else %}{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if loop.last %}\n{{ m['content'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHATS = [
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": f"What is {i} and one?"},
        {"role": "assistant", "content": f"{i + 1}, naturally: {i} + 1."},
        {"role": "user", "content": "Are you sure?\nReally?"},
        {"role": "assistant", "content": "Yes \N{WHITE SMILING FACE} I am."},
    ]
    for i in range(60)
]


def nested(depth: int) -> object:
    """JSON reads so much, and a library that goes down by calls of its own does not come to its end."""
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def save(folder: Path, template: str) -> Path:
    tokenizer = train_tokenizer([json.dumps(CHATS)], 300)
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"])
    library = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    library.chat_template = template or None
    library.save_pretrained(folder)
    return folder


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def packed(folder: Path, template: str, rows: list[object]) -> Path:
    options = PackOptions(save(folder / "tokenizer", template), "messages", held_fraction=0.2, is_chat=True)
    pack([write(folder / "chats.jsonl", rows)], folder / "store", options, lambda _: None, lambda *_: None)
    return folder / "store"


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_the_mask_is_that_of_transformers(tmp_path: Path, template: str) -> None:
    own = ChatEncoder(save(tmp_path / "own", template))
    library = AutoTokenizer.from_pretrained(save(tmp_path / "marked", MARKED))
    for chat in CHATS[:8]:
        found = library.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        mine = own.encode(chat, "here")
        assert list(mine.ids) == list(found["input_ids"])
        assert list(mine.answered) == list(found["assistant_masks"])
        assert 0 < sum(mine.answered) < len(mine.answered)


def test_a_store_of_conversations_trains_answers_only(tmp_path: Path) -> None:
    store_at = packed(tmp_path, PLAIN, [{"messages": chat} for chat in CHATS])
    store = open_store(store_at)
    list(check_hashes(store))
    assert describe(store, 16)["loss"] == "answers only"
    assert store.index.eos is None
    library = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    source = TextSource("chats", 1.0, store.index.sha256(), str(store_at))
    order = SourceOrder([source], 16, store.index.vocab_size, seed=1)
    order.begin([0, store.train.num_samples(16)])
    ids, targets = order.batch(0, store.train.num_samples(16))
    trained = targets != NOT_TRAINED
    assert torch.equal(targets[:, :-1][trained[:, :-1]], ids[:, 1:][trained[:, :-1]])
    said = library.decode(targets[trained])
    assert "naturally" in said
    assert "What is" not in said
    assert "Be short" not in said
    assert order.validation_batches(4, 2)


def test_targets_are_the_labels_of_the_librarys_collator(tmp_path: Path) -> None:
    """Conversations one behind the other: its labels are shifted in the model, our targets in the store."""
    library = AutoTokenizer.from_pretrained(save(tmp_path / "marked", MARKED))
    features = []
    for chat in CHATS:
        found = library.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        pairs = zip(found["input_ids"], found["assistant_masks"], strict=True)
        features.append({"input_ids": found["input_ids"], "labels": [id_ if own else -100 for id_, own in pairs]})
    # Without this the first token of a conversation is no label; here it is none because nobody answers with it.
    batch = DataCollatorWithFlattening(return_position_ids=False, separator_id=-100)(features)
    ids, labels = batch["input_ids"][0], batch["labels"][0]
    options = PackOptions(save(tmp_path / "own", PLAIN), "messages", held_fraction=0.0, is_chat=True)
    chats = write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    pack([chats], tmp_path / "store", options, lambda _: None, lambda *_: None)
    part = open_store(tmp_path / "store").train
    assert part.num_tokens == len(ids)
    row, answered = (read(np.array([0]), len(ids) - 1)[0] for read in (part.samples, part.answered))
    assert torch.equal(torch.from_numpy(row), ids)
    assert torch.equal(torch.from_numpy(answered) == 0, labels == -100)
    source = TextSource("chats", 1.0, open_store(tmp_path / "store").index.sha256(), str(tmp_path / "store"))
    order = SourceOrder([source], len(ids) - 1, 400, seed=1)
    order.begin([0, 1])
    (own_ids,), (targets,) = order.batch(0, 1)
    assert torch.equal(own_ids, ids[:-1])
    assert torch.equal(torch.where(targets == NOT_TRAINED, -100, targets), labels[1:])
    # The library's own loss on its labels is ours on our targets.
    logits = torch.randn(1, len(ids), 400, generator=torch.Generator().manual_seed(0))
    theirs = ForCausalLMLoss(logits, labels[None], vocab_size=400)
    assert torch.allclose(cross_entropy(logits[:, :-1], targets[None]), theirs, atol=1e-6)


def test_a_damaged_mask_is_found(tmp_path: Path) -> None:
    store_at = packed(tmp_path, PLAIN, [{"messages": chat} for chat in CHATS])
    path = next(store_at.glob("train-*.mask"))
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ConfigError, match="not what it was"):
        list(check_hashes(open_store(store_at)))


def test_stores_of_text_keep_their_hash(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One and one is two.\n" * 50)
    options = PackOptions(save(tmp_path / "tokenizer", ""), held_fraction=0.0)
    pack([tmp_path / "a.txt"], tmp_path / "store", options, lambda _: None, lambda *_: None)
    assert b"mask" not in (tmp_path / "store" / "index.json").read_bytes()
    assert not open_store(tmp_path / "store").train.has_mask


SILENT = {"role": "assistant", "content": " \n"}
LONG = {"role": "user", "content": 17_000_000 * "x"}


@pytest.mark.parametrize("message", [SILENT | {"tool_calls": []}, SILENT | {"content": "Yes."}])
def test_an_answer_beside_an_empty_one_is_packed(tmp_path: Path, message: dict[str, object]) -> None:
    rows = [{"messages": [*chat[:2], SILENT, message]} for chat in CHATS]
    store = open_store(packed(tmp_path, PLAIN, rows))
    assert sum(shard.num_documents for shard in store.index.shards) == len(CHATS)


def test_half_a_character_is_packed_as_in_a_text(tmp_path: Path) -> None:
    rows = [{"messages": [{**one, "content": one["content"] + "\ud83d"} for one in chat]} for chat in CHATS]
    store = open_store(packed(tmp_path, PLAIN, rows))
    assert sum(shard.num_documents for shard in store.index.shards) == len(CHATS)


@pytest.mark.parametrize(
    ("template", "row", "words"),
    [
        ("", {"messages": CHATS[0]}, "has no chat template"),
        (PLAIN, {"text": "x"}, "line 1: field 'messages' is no list of messages"),
        (PLAIN, {"messages": []}, "field 'messages' is no list of messages"),
        (PLAIN, {"messages": ["x"]}, "line 1: message 1 of 1 in field 'messages' has no role and no content that is"),
        (PLAIN, {"messages": [*CHATS[0], {"role": "user"}]}, r"message (\d) of \1 in field 'messages' has no content"),
        (PLAIN, {"messages": [*CHATS[0], {"role": 1, "content": ""}]}, "has no role that is text; correct or remove"),
        (PLAIN, {"messages": CHATS[0][:2]}, "left out: 1 conversations without an answer"),
        (PLAIN, {"messages": [*CHATS[0][:2], SILENT]}, "left out: 1 conversations without an answer"),
        (MARKED, {"messages": [*CHATS[0], LONG]}, "line 1: this conversation has 17,000,.*; split it"),
        (FORGETFUL, {"messages": CHATS[0]}, "writes earlier messages differently"),
        (PLAIN + "{{ raise_exception('no') }}", {"messages": CHATS[0]}, "refuses this conversation"),
        (PLAIN, {"messages": [*CHATS[0], {"role": "user", "content": "", "more": nested(700)}]}, "maximum recursion"),
    ],
)
def test_what_cannot_be_packed_is_one_sentence(tmp_path: Path, template: str, row: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        packed(tmp_path, template, [row])
    assert not (tmp_path / "store" / "index.json").exists()


def test_parts_with_few_answers_weigh_as_their_answers() -> None:
    logits = torch.randn(4, 6, 11, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(1))
    targets[0], targets[1, :5] = NOT_TRAINED, NOT_TRAINED
    expected = cross_entropy(logits, targets)
    (whole,) = torch.autograd.grad(expected, logits)
    loss = PartLoss(4)
    loss.begin(targets)
    parts = [loss(logits[k : k + 1], targets[k : k + 1]) for k in range(4)]
    (grad,) = torch.autograd.grad(torch.stack(parts).mean(), logits)
    assert torch.allclose(torch.stack(parts).mean(), expected)
    assert torch.allclose(grad, whole, atol=1e-8)
    loss.begin(torch.full_like(targets, NOT_TRAINED))
    assert float(loss(logits, torch.full_like(targets, NOT_TRAINED)).detach()) == 0.0
    loss.begin(targets[2:])
    plain = functional.cross_entropy(logits[2:].flatten(0, 1), targets[2:].flatten())
    assert torch.equal(loss(logits[2:], targets[2:]), plain)


def test_without_transformers_conversations_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_models.PathFinder, "find_spec", lambda *_: None)
    with pytest.raises(ConfigError, match=r"--chat needs transformers, .* pip install 'dilocoxd\[hf\]'"):
        ChatEncoder(tmp_path)


def test_code_beside_a_tokenizer_never_runs_whatever_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "tokenizer", PLAIN)
    (folder / "tokenization_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ConfigError, match="custom code") as refused:
        ChatEncoder(folder)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["[1]", '"x"', '{"chat_template": 5}', '{"added_tokens_decoder": {"x": 1}}', "{"])
def test_a_tokenizers_table_that_is_none_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = save(tmp_path / "tokenizer", "")
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        ChatEncoder(folder)
    assert "\n" not in str(refused.value)
