"""Models in: what transformers saved becomes shared state 0, and comes out again as the same model, for each family."""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from dilocoxd.cli.main import cli, main
from dilocoxd.config.manifest import load_manifest, manifest_from_tables
from dilocoxd.errors import ConfigError
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store import snapshots
from dilocoxd.trained.incoming.first_state import write_first_state
from dilocoxd.trained.tokenizer import require_packed_with
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer
from dilocoxd.wire.layout import ParamSpec
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.published.directory import LINES, VOCAB, publish, save_tokenizer
from tests.harness.published.prepared_here import prepared_here
from tests.harness.published.reloaded import reloaded
from tests.unit.models.families import FAMILY_CONFIGS

LLAMA = FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB}


def start(folder: Path, *options: str, is_apart: bool = False) -> Result:
    """`dilocoxd start tiny --no-run` in `folder`, with a text of its own. `is_apart`: weights are read as they are for
    an operator, in another process, which takes seconds to load its libraries."""
    (folder / "text.txt").write_text("".join(LINES), encoding="utf-8")
    arguments = [*start_arguments(folder), *options]
    with nullcontext() if is_apart else prepared_here():
        return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def start_arguments(folder: Path, data: str = "") -> list[str]:
    return [
        "start", "tiny", "--no-run", "--dir", str(folder / "run"), "--cache", str(folder / "cache"),
        "--data", data or f"numbers={folder / 'text.txt'}", "--api-port", "0",
    ]  # fmt: skip


def export(folder: Path) -> Path:
    arguments = ["export", str(folder / "run"), "--out", str(folder / "out")]
    CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
    return folder / "out"


def logits(model: object) -> torch.Tensor:
    ids = torch.randint(0, 90, (1, 20), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        return model.eval()(input_ids=ids, use_cache=False).logits  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("label", FAMILY_CONFIGS)
def test_what_was_saved_is_state_0_to_the_bit(tmp_path: Path, label: str) -> None:
    saved = publish(tmp_path / "model", FAMILY_CONFIGS[label])
    tables = {
        "run": {"name": "test"},
        "data": {"corpus": "english"},
        "inner": {"lr": 1e-3, "total_steps": 9, "batch_sequences": 4, "microbatches": 2},
        "strategy": {"inner_steps": 4},
    }
    from dilocoxd.cli.model.origin import Origin

    manifest = manifest_from_tables(Origin(init=tmp_path / "model").applied(tables), source="test")
    plan = make_plan(manifest)
    (tmp_path / "state").mkdir()
    write_first_state(plan, Pretrained(tmp_path / "model"), tmp_path / "state", lambda _: None)
    weights = load_file(tmp_path / "state" / "anchor.safetensors")
    expected = saved.state_dict()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("label", ["llama tied", "mixtral", "gpt2", "gemma3_text"])
def test_start_takes_a_model_and_export_gives_it_back(tmp_path: Path, label: str) -> None:
    table = FAMILY_CONFIGS[label] | {"vocab_size": VOCAB}
    saved = publish(tmp_path / "model", table, shard="60KB")
    options = ("--init", str(tmp_path / "model"), "--set", "model.seq_len=24")
    assert start(tmp_path, *options, is_apart=label == "llama tied").exit_code == 0
    manifest = load_manifest(tmp_path / "run" / "run.toml")
    assert manifest.model.seq_len == 24
    assert manifest.tokenizer.kind == "files"
    assert len(manifest.init.files) > 1
    index = snapshots.verify(tmp_path / "run" / "snapshots" / "0")
    assert index.state_digest == manifest.init.state_digest
    worker = InnerWorker(make_plan(manifest))
    ready = worker.do(LoadState, str(tmp_path / "run" / "snapshots" / "0"))
    assert ready.state_digest.hex() == manifest.init.state_digest
    assert not worker.floats(local_buffers.MOMENTUM).any()
    out = export(tmp_path)
    again = reloaded(out)
    assert torch.equal(logits(again), logits(saved))
    assert (out / "tokenizer_config.json").read_text() == (tmp_path / "model" / "tokenizer_config.json").read_text()


def test_half_precision_weights_are_read_exactly(tmp_path: Path) -> None:
    saved = publish(tmp_path / "model", LLAMA, dtype=torch.bfloat16)
    start(tmp_path, "--init", str(tmp_path / "model"))
    weights = load_file(tmp_path / "run" / "snapshots" / "0" / "anchor.safetensors")
    assert torch.equal(weights["model.norm.weight"], saved.state_dict()["model.norm.weight"])


def test_without_the_weights_no_genesis_takes_their_place(tmp_path: Path) -> None:
    publish(tmp_path / "model", LLAMA)
    start(tmp_path, "--init", str(tmp_path / "model"))
    worker = InnerWorker(make_plan(load_manifest(tmp_path / "run" / "run.toml")))
    answer = worker.ask(LoadState, "")
    assert isinstance(answer, WorkerFailed)
    assert "pretrained weights" in answer.detail


def test_config_alone_starts_from_scratch_with_the_families_genesis(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FAMILY_CONFIGS["gemma3_text"] | {"vocab_size": VOCAB}))
    start(tmp_path, "--config", str(tmp_path / "config.json"), "--set", "model.seq_len=24")
    manifest = load_manifest(tmp_path / "run" / "run.toml")
    assert (manifest.model.kind, manifest.tokenizer.kind, manifest.init.state_digest) == ("hf", "bpe", "")
    worker = InnerWorker(make_plan(manifest))
    worker.do(LoadState, "")
    plan = make_plan(manifest)
    span = plan.layout.span("model.norm.weight")
    assert not worker.floats(local_buffers.ANCHOR)[span.start : span.stop].any()


def test_own_tokenizer_sets_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "mine", 290)
    start(tmp_path, "--tokenizer", str(tmp_path / "mine"))
    manifest = load_manifest(tmp_path / "run" / "run.toml")
    assert (manifest.model.kind, manifest.model.vocab_size) == ("native", 290)
    assert len(manifest.tokenizer.sha256) == 64
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()


def spoil_shard(model: Path) -> None:
    sorted(model.glob("model-*.safetensors"))[1].unlink()


def spoil_end(model: Path) -> None:
    path = sorted(model.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-100])


def spoil_number(model: Path) -> None:
    path = sorted(model.glob("*.safetensors"))[0]
    weights = {name: tensor.half() for name, tensor in load_file(path).items()}
    next(iter(weights.values())).view(-1)[3] = float("nan")
    save_file(weights, path)


def spoil_vocabulary(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": VOCAB + 8}))


def spoil_tokenizer(model: Path) -> None:
    save_tokenizer(model, VOCAB + 40)


def spoil_family(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "bert"}))


def spoil_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def spoil_tensor(model: Path) -> None:
    path = sorted(model.glob("*.safetensors"))[0]
    weights = load_file(path)
    weights.pop(sorted(weights)[0])
    save_file(weights, path)


def spoil_twice(model: Path) -> None:
    first, second, *_ = sorted(model.glob("*.safetensors"))
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: tensor + 1}, second)


def spoil_adapter(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `dilocoxd start` says when it refuses: one sentence, status 78, and nothing was written."""

    def refusal(folder: Path, *options: str, data: str = "", is_apart: bool = False) -> str:
        before = {path.name for path in folder.iterdir()}
        (folder / "text.txt").write_text("".join(LINES), encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["dilocoxd", *start_arguments(folder, data), *options])
        with pytest.raises(SystemExit) as ended, nullcontext() if is_apart else prepared_here():
            main()
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dilocoxd: ")]
        assert ended.value.code == 78
        assert len(said) == 1
        assert {path.name for path in folder.iterdir()} <= before | {"text.txt", "cache"}
        return said[0]

    return refusal


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "model"
    publish(folder, LLAMA, shard="60KB")
    return folder


def test_config_that_does_not_exist_is_called_so(tmp_path: Path, refused: Callable[..., str]) -> None:
    said = refused(tmp_path, "--config", str(tmp_path / "none.json"))
    assert f"{tmp_path / 'none.json'}: there is no such file; give the path" in said


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("head_dim", 1 << 60, "which no model has; give a smaller number"),
        ("head_dim", -8, "negative dimension"),
        ("head_dim", 1 << 31, "parameters, and its sizes say about 51200"),
        ("max_position_embeddings", "many", "'max_position_embeddings' expected int"),
    ],
)
def test_a_size_that_no_tiny_model_has_is_refused_before_the_run_is_there(
    tmp_path: Path, refused: Callable[..., str], field: str, value: object, words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {field: value}))
    assert words in refused(tmp_path, "--config", str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[" * 200_000, "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[1]", "it is no table"),
        ("tokenizer.json", '{"model": {"vocab": {"a": Infinity}}}', "'inf' is no id"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}}, "added_tokens": [5]}', "added tokens are none"),
        ("tokenizer.json", "nonsense", "tokenizer.json cannot be read"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused_before_the_run_is_there(
    tmp_path: Path, refused: Callable[..., str], name: str, text: str, words: str
) -> None:
    save_tokenizer(tmp_path / "mine")
    (tmp_path / "mine" / name).write_text(text)
    assert words in refused(tmp_path, "--tokenizer", str(tmp_path / "mine"))


def test_a_file_that_is_too_large_for_a_tokenizer_is_refused_unread(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    save_tokenizer(tmp_path / "mine")
    os.truncate(tmp_path / "mine" / "tokenizer.json", 1 << 40)
    assert "has more than 64 MiB" in refused(tmp_path, "--tokenizer", str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="has more than 64 MiB"):
        load_tokenizer(tmp_path / "mine")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_shard, "is missing"),
        (spoil_end, "cut off"),
        (spoil_number, "NaN or Inf"),
        (spoil_vocabulary, r"config.json asks for \[328, 32\]"),
        (spoil_tokenizer, "has 360 tokens, model.vocab_size is 320"),
        (spoil_family, "model_type 'bert'"),
        (spoil_config, "cannot be read as JSON"),
        (spoil_tensor, "no file has tensor"),
        (spoil_twice, "is in model-00001-of-00003.safetensors as well"),
        (spoil_adapter, "it is an adapter; give the model that it belongs to"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, published: Path, spoil: object, words: str, refused: Callable[..., str]
) -> None:
    shutil.copytree(published, tmp_path / "model")
    spoil(tmp_path / "model")  # type: ignore[operator]
    said = refused(tmp_path, "--init", str(tmp_path / "model"), is_apart=spoil is spoil_end)
    assert re.search(words, said)


@pytest.mark.parametrize("lora", [(), ("--lora", "4")])
def test_weights_that_the_model_has_no_place_for_are_named(
    tmp_path: Path, published: Path, lora: tuple[str, ...]
) -> None:
    shutil.copytree(published, tmp_path / "model")
    options = ("--init", str(tmp_path / "model"), *lora)
    assert "has no place for" not in start(tmp_path, *options).stderr
    config = tmp_path / "model" / "config.json"
    table = json.loads(config.read_text())
    config.write_text(json.dumps(table | {"num_hidden_layers": table["num_hidden_layers"] - 1}))
    shutil.rmtree(tmp_path / "run")
    said = start(tmp_path, *options).stderr
    last = table["num_hidden_layers"] - 1
    assert re.search(rf"left out: \d+ tensors .* has no place for, the first is 'model.layers.{last}\.", said)


def test_what_a_model_makes_again_is_not_called_left_out(tmp_path: Path, published: Path) -> None:
    """A tied head saved twice, masks and frequencies of older files; a head of its own in a tied model is said."""
    path = tmp_path / "model.safetensors"
    weights: dict[str, torch.Tensor] = {}
    for shard in published.glob("*.safetensors"):
        weights |= load_file(shard)
    embedding, mask = weights["model.embed_tokens.weight"], torch.ones(1, 1, 24, 24, dtype=torch.bool)
    again = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "h.0.attn.bias": mask,
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "gpt_neox.layers.0.attention.bias": mask.clone(),
    }
    needed = tuple(ParamSpec(name, tuple(tensor.shape)) for name, tensor in weights.items())
    save_file(weights | again | {"lm_head.weight": embedding.clone()}, path)
    assert Pretrained(tmp_path).left_out(needed) == []
    other, learnt = embedding.clone(), {"h.0.attn.bias": torch.ones(24)}
    other[-1, -1] += 1
    save_file(weights | again | learnt | {"lm_head.weight": other}, path)
    assert Pretrained(tmp_path).left_out(needed) == ["h.0.attn.bias", "lm_head.weight"]


@pytest.mark.parametrize(
    ("size", "words"), [(VOCAB, "packed with another tokenizer"), (VOCAB + 8, "the store has 328 kinds of tokens")]
)
def test_a_store_of_another_tokenizer_is_refused(
    tmp_path: Path, published: Path, refused: Callable[..., str], size: int, words: str
) -> None:
    shutil.copytree(published, tmp_path / "model")
    save_tokenizer(tmp_path / "other", size, [line.upper() for line in LINES])
    for name in ("model", "other"):
        (tmp_path / f"{name}.txt").write_text("".join(LINES), encoding="utf-8")
        options = PackOptions(tmp_path / name, held_fraction=0.0)
        pack([tmp_path / f"{name}.txt"], tmp_path / f"{name}-store", options, lambda _: None, lambda *_: None)
    stores = {name: str(tmp_path / f"{name}-store") for name in ("model", "other")}
    assert re.search(words, refused(tmp_path, "--init", str(tmp_path / "model"), data=f"books={stores['other']}"))
    require_packed_with(tmp_path / "model", {"books": stores["model"]})
    again = tmp_path / "again"
    AutoTokenizer.from_pretrained(tmp_path / "model", padding_side="left").save_pretrained(again)
    require_packed_with(again, {"books": stores["model"]})
