"""`dilocoxd generate` and `evaluate`: the cache changes nothing but the time, texts end where they shall."""

import json
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import cast

import click
import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

from dilocoxd.cli.exit_codes import INTERRUPTED
from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule
from dilocoxd.trained import measure
from dilocoxd.trained.measure import total_loss
from dilocoxd.trained.text import pieces
from dilocoxd.trainer.data import PreparedData
from dilocoxd.trainer.generate import Sampling, generate_lines, sampled
from dilocoxd.trainer.tokens import limits
from dilocoxd.trainer.whole import whole_model
from tests.harness.outer_worker.run_on_disk import TEXT, VOCAB, RunOnDisk, make_run
from tests.harness.published.directory import save_tokenizer
from tests.remedies.refused.elsewhere import refused
from tests.unit.trainer.tokens.test_limits import GREEDY

PROMPT = "Number 7"
ROUNDING = 1e-4
"""Of logits in float32: a cache changes the order of sums."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    return make_run(tmp_path_factory.mktemp("text"), rounds=1, snapshots_at=(0, 1))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def model_of(kind: str, folder: Path) -> StageModule:
    made = make_run(folder, rounds=1, snapshots_at=(), model={"kind": kind})
    # Untrained logits are nearly equal: steeper weights make a wrong cache visible.
    return whole_model(ModelConfig.from_section(made.manifest.model), made.anchors[1] * 8)


@pytest.mark.parametrize("kind", ["native", "qwen3"])
def test_a_cache_gives_the_logits_of_the_whole_text(tmp_path: Path, kind: str) -> None:
    model = model_of(kind, tmp_path)
    ids = torch.randint(0, VOCAB, (1, 12), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model.extend(ids[:, :5], cache)]
        parts += [model.extend(ids[:, place : place + 1], cache) for place in range(5, 12)]
        expected = model(ids)
    assert torch.allclose(torch.cat(parts, dim=1), expected, atol=ROUNDING)
    assert expected.std() > 100 * ROUNDING


def test_a_text_may_be_longer_than_the_window(tmp_path: Path) -> None:
    model = model_of("native", tmp_path)
    tokens = list(sampled(model, [1, 2, 3], 16, Sampling(70, seed=3)))
    assert len(tokens) == 70
    assert tokens == list(sampled(model, [1, 2, 3], 16, Sampling(70, seed=3)))
    assert tokens != list(sampled(model, [1, 2, 3], 16, Sampling(70, seed=4)))


def test_the_likeliest_token_is_the_same_with_and_without_cache(tmp_path: Path) -> None:
    model = model_of("native", tmp_path)
    ids = [5, 6, 7]
    found = list(sampled(model, ids, 16, Sampling(10, temperature=0.0)))
    with torch.no_grad():
        for token in found:
            assert int(model(torch.tensor([ids]))[0, -1].argmax()) == token
            ids.append(token)


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(tmp_path: Path) -> None:
    model = model_of("native", tmp_path)
    free = list(sampled(model, [1], 16, Sampling(10, seed=1)))
    stop = free[4]
    found = list(sampled(model, [1], 16, Sampling(10, seed=1, stop_ids=frozenset({stop}))))
    assert found == free[: free.index(stop)]


def test_generate_prints_prompts_and_what_follows(run: RunOnDisk) -> None:
    arguments = ("generate", str(run.run_dir.path), "--prompt", PROMPT, "--prompt", "The", "--max-tokens", "12")
    first = invoke(*arguments)
    assert first.output.startswith(PROMPT)
    assert "\nThe" in first.output
    assert len(first.output) > len(PROMPT) + 12
    assert invoke(*arguments).output == first.output


class Counting:
    """A tokenizer that remembers how much it was asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.lengths: list[int] = []

    def decode(self, ids: list[int]) -> str:
        self.lengths.append(len(ids))
        return self._tokenizer.decode(ids)


def test_a_long_text_is_not_decoded_again_for_each_token(tmp_path: Path) -> None:
    """Characters of several bytes come whole, too."""
    save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "a caf\u00e9, \u6f22\u5b57 \U0001f680 and the " * 40
    ids = tokenizer.encode(text).ids
    counting = Counting(tokenizer)
    said = list(pieces(cast("Tokenizer", counting), ids[:9], ids[9:]))
    assert tokenizer.decode(ids[:9]) + "".join(said) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(said) and len(said) > 100
    assert max(counting.lengths) <= 32


def test_ctrl_c_ends_a_text_where_it_is(run: RunOnDisk) -> None:
    said = 0

    def press_after_three(frame: FrameType, event: str, _: object) -> None:
        nonlocal said
        said += event == "return" and frame.f_code is click.echo.__code__
        if said == 3:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a script runs in the background ignores it
    sys.setprofile(press_after_three)
    try:
        ended = invoke("generate", str(run.run_dir.path), "--prompt", PROMPT, "--max-tokens", "1000000")
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    assert ended.return_value == INTERRUPTED
    assert ended.stdout.startswith(PROMPT)
    assert ended.stdout.endswith("\n")


def test_untrained_model_is_as_good_as_guessing_on_a_text(run: RunOnDisk, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(TEXT), encoding="utf-8")
    result = invoke("evaluate", str(run.run_dir.path), "--round", "0", "--text", str(path), "--json")
    found = json.loads(result.stdout)
    assert found["loss"] == pytest.approx(math.log(VOCAB), abs=0.1)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(
        found["loss"] * found["num_tokens"] / math.log(2) / path.stat().st_size
    )


def test_every_token_but_the_first_is_predicted_once(tmp_path: Path) -> None:
    model = model_of("native", tmp_path)
    ids = torch.randint(0, VOCAB, (45,), generator=torch.Generator().manual_seed(2)).tolist()
    total, count = total_loss(model, ids, 16)
    assert count == 44
    expected = 0.0
    with torch.no_grad():
        for place in range(1, 45):
            start = (place - 1) // 16 * 16
            logits = model(torch.tensor([ids[start:place]]))[0, -1]
            expected -= float(torch.log_softmax(logits.float(), 0)[ids[place]])
    assert total == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("data", "words"), [(b"", "has 0 tokens"), (b"\xff\xfe", "cannot be read as UTF-8")])
def test_a_file_that_is_no_text_is_named(run: RunOnDisk, tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        invoke("evaluate", str(run.run_dir.path), "--text", str(tmp_path / "text"))


def test_a_text_without_an_end_is_not_read_to_its_end(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/zero is valid UTF-8 and has no size."""
    monkeypatch.setattr(measure, "_TEXT_BYTES_MAX", 1 << 20)
    with pytest.raises(ConfigError, match="/dev/zero: has more than 1 MiB; give a part of it"):
        invoke("evaluate", str(run.run_dir.path), "--text", "/dev/zero")


@pytest.mark.parametrize(("options", "is_other"), [(("generate", "--prompt", PROMPT), True), (("evaluate",), True),
                                                   (("generate",), False), (("evaluate",), False)])  # fmt: skip
def test_a_tokenizer_that_is_none_or_not_the_models_is_named(
    run: RunOnDisk, tmp_path: Path, options: tuple[str, ...], *, is_other: bool
) -> None:
    table = json.loads((run.run_dir.path / "tokenizer" / "tokenizer.json").read_text())
    table["model"] |= {"vocab": {word: 1000 + number for word, number in table["model"]["vocab"].items()}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(table) if is_other else "{")
    (tmp_path / "text").write_text("".join(TEXT[:3]))
    text = ("--text", str(tmp_path / "text")) if options[0] == "evaluate" else ()
    words = r"it gives token 1\d+, and the model knows" if is_other else "is no tokenizer"
    with pytest.raises(ConfigError, match=words):
        invoke(options[0], str(run.run_dir.path), *options[1:], *text, "--tokenizer", str(tmp_path))


@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_a_tokenizer_that_makes_gigabytes_of_a_letter_is_one_sentence(
    command: str, run: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read well, and took all memory or aborted the command at the first text with that letter."""
    monkeypatch.setattr(limits, "MEMORY_BYTES_MAX", 1 << 30)
    table = json.loads((run.run_dir.path / "tokenizer" / "tokenizer.json").read_text())
    table["normalizer"] = {"type": "Sequence", "normalizers": GREEDY}
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))

    def typed(text: str) -> None:
        (tmp_path / "text").write_text(text)
        given = ("--prompt", text, "--max-tokens", "2") if command == "generate" else ("--text", str(tmp_path / "text"))
        invoke(command, str(run.run_dir.path), "--tokenizer", str(tmp_path), *given)

    with refused("trainer/tokens/limits.py", "which may take VALUE GiB of memory; take that text out"):
        typed("The end")
    typed("an end")


def test_an_empty_prompt_is_refused(run: RunOnDisk) -> None:
    with pytest.raises(ConfigError, match="no token"):
        invoke("generate", str(run.run_dir.path), "--prompt", "")


def test_a_prompt_of_another_encoding_is_refused(run: RunOnDisk) -> None:
    with pytest.raises(ConfigError, match="is not in UTF-8"):
        invoke("generate", str(run.run_dir.path), "--prompt", b"caf\xe9".decode("utf-8", "surrogateescape"))


@pytest.fixture
def cutting(run: RunOnDisk) -> Iterator[None]:
    """A tokenizer.json that says how long the texts of its own model were."""
    file = run.run_dir.path / "tokenizer" / "tokenizer.json"
    before = file.read_bytes()
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=7)
    tokenizer.save(str(file))
    yield
    file.write_bytes(before)


@pytest.mark.usefixtures("cutting")
def test_tokenizer_that_cuts_and_pads_changes_neither_texts_nor_prompts(run: RunOnDisk, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(TEXT[:20]), encoding="utf-8")
    result = invoke("evaluate", str(run.run_dir.path), "--text", str(tmp_path / "text"), "--json")
    assert json.loads(result.stdout)["num_tokens"] > 20
    assert invoke("generate", str(run.run_dir.path), "--prompt", PROMPT, "--max-tokens", "3").output.startswith(PROMPT)
    prepared = PreparedData(run.run_dir.path / "tokenizer", "", "", "", VOCAB, 0, 0, 0.0)
    model = ModelConfig.from_section(run.manifest.model)
    line = generate_lines(model, run.anchors[1], prepared, ["Number 7 is the sum of"], num_tokens=3)[0]
    assert line.startswith("Number 7 is the sum of")
