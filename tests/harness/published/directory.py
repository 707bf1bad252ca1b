"""A small model of any family, saved by transformers itself, with a tokenizer and a text that it was trained on.

transformers and peft are imported where they are needed: each process of pytest reads all tests, and few come to these.
"""

from pathlib import Path
from typing import Any

import torch

from dilocoxd.trainer.data.bpe import train_tokenizer

LINES = [f"Number {i} is the sum of {i - 1} and one, and {2 * i} is twice {i}.\n" for i in range(1500)]
VOCAB = 320
END = "<|end|>"


def save_tokenizer(folder: Path, size: int = VOCAB, lines: list[str] = LINES) -> None:
    """tokenizer.json and tokenizer_config.json with an end-of-text token; `size` tokens with it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = train_tokenizer(lines, size - 1)
    tokenizer.add_special_tokens([END])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)


def publish(folder: Path, table: dict[str, Any], *, shard: str = "5GB", dtype: torch.dtype = torch.float32) -> Any:
    """Save an untrained model of this config.json into `folder`; returns it, in float32."""
    from dilocoxd.models.hf_cut import config_object, new_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = new_model(config_object(table))
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor += torch.randn_like(tensor) * 0.02
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder)
    return model.float()
