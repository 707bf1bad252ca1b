"""Documents that share a sample: each has the losses that it has alone, whatever stands beside it."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage
from dilocoxd.models.build import check_model
from dilocoxd.models.stage import document_mask, positions_of
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.models.test_families import genesis, model_of

END = 7
LENGTHS = (9, 1, 14)
"""Of the documents in a sample; the window of models with sliding windows is 8."""
LOSS_TOLERANCE = 1e-5
"""float32: sums over a row of a longer sample go in another order."""
NATIVE = ModelConfig("native", 96, 32, 4, 4, 2, 48, 24)
MODELS = {"native": NATIVE, "kind llama": ModelConfig("llama", 96, 32, 4, 4, 2, 48, 24)} | {
    label: model_of(label) for label in FAMILY_CONFIGS if label != "gpt_oss"
}


def stages(config: ModelConfig, num_stages: int) -> list[StageModule]:
    """A chain with the weights of genesis."""
    ends = [config.num_layers * number // num_stages for number in range(num_stages + 1)]
    weights = genesis(config)
    found = []
    for number, (first, end) in enumerate(pairwise(ends)):
        stage = build_stage(config, StageSpan(number, num_stages, first, end), device=torch.device("cpu")).eval()
        borrowed = stage.borrowed_embedding()
        with torch.no_grad():
            for name, parameter in stage.global_parameters():
                parameter.copy_(weights[name])
            if borrowed is not None:
                borrowed.copy_(next(iter(weights.values())))
        found.append(stage)
    return found


@torch.no_grad()
def logits_of(chain: list[StageModule], ids: Tensor, positions: Tensor | None = None) -> Tensor:
    hidden = ids
    for stage in chain:
        hidden = stage(hidden) if positions is None else stage(hidden, positions)
    return hidden


def sample(seed: int = 1) -> list[Tensor]:
    """Documents [2, T], each with the end token at its end and nowhere else."""
    random = torch.Generator().manual_seed(seed)
    found = [torch.randint(END + 1, 96, (2, length), generator=random) for length in LENGTHS]
    for document in found:
        document[:, -1] = END
    return found


def losses(logits: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")


@pytest.mark.parametrize("label", MODELS)
def test_each_document_has_the_losses_that_it_has_alone(label: str) -> None:
    chain, documents = stages(MODELS[label], 1), sample()
    ids = torch.cat(documents, dim=1)
    together = logits_of(chain, ids, positions_of(ids, END))
    ends = [sum(LENGTHS[:number]) for number in range(len(LENGTHS) + 1)]
    for document, (start, end) in zip(documents, pairwise(ends), strict=True):
        expected = losses(logits_of(chain, document), document)
        torch.testing.assert_close(losses(together[:, start:end], document), expected, rtol=0, atol=LOSS_TOLERANCE)
    unmasked = logits_of(chain, ids)
    assert float((unmasked - together)[:, LENGTHS[0] :].abs().max()) > 100 * LOSS_TOLERANCE, "it says nothing"
    assert torch.allclose(logits_of(stages(MODELS[label], 2), ids, positions_of(ids, END)), together, rtol=0, atol=0)


@pytest.mark.parametrize("label", ["native", "llama", "qwen3 wide heads", "gemma3_text"])
def test_what_stands_in_another_document_changes_no_bit(label: str) -> None:
    chain = stages(MODELS[label], 1)
    first, other = sample(1), sample(2)
    found = []
    for documents in (first, [other[0], first[1], other[2]]):
        ids = torch.cat(documents, dim=1)
        found.append(logits_of(chain, ids, positions_of(ids, END))[:, LENGTHS[0] : LENGTHS[0] + LENGTHS[1]])
    assert torch.equal(*found)


def test_positions_begin_anew_behind_each_end_token() -> None:
    ids = torch.tensor([[5, END, END, 4, 3], [END, 1, 2, 3, END]])
    assert positions_of(ids, END).tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 2, 3]]
    seen = document_mask(positions_of(ids, END))[0, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("label", ["native", "kind llama", "llama tied", "qwen3 wide heads", "gemma3_text", "gpt2"])
def test_start_up_check_accepts_models_that_keep_documents_apart(label: str) -> None:
    check_model(MODELS[label], keeps_documents_apart=True)


def test_a_family_that_mixes_documents_is_one_sentence() -> None:
    check_model(model_of("gpt_oss"))
    with pytest.raises(ConfigError, match="gpt_oss does not keep documents apart") as refused:
        check_model(model_of("gpt_oss"), keeps_documents_apart=True)
    assert "\n" not in str(refused.value)


def test_a_model_that_takes_no_positions_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.models.llama.NativeStage.takes_positions", False)
    with pytest.raises(ConfigError, match="takes no positions"):
        check_model(NATIVE, keeps_documents_apart=True)
