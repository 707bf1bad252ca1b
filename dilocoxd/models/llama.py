"""The native model: a LLaMA-style decoder in plain torch, with the parameter names of transformers' Llama.

Equal to LlamaForCausalLM on the same weights (tests/unit/trainer), but it needs no transformers import and has less
Python per layer, which is what small models on CPUs spend their time on.
"""

# Shape legend: B sequences, T positions, D hidden size, H heads, K key/value heads, E head size, V vocabulary.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.stage import StageModule, document_mask


@dataclass
class KeyValues:
    """Keys and values [B, K, T, E] of one block for the positions so far."""

    keys: Tensor | None = None
    values: Tensor | None = None

    @property
    def length(self) -> int:
        """Positions so far."""
        return 0 if self.keys is None else self.keys.shape[2]

    def grow(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; returns all of them."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)
        self.keys, self.values = keys, values
        return keys, values


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_grouped = config.num_heads != config.num_kv_heads
        self.head_dim = config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, past: KeyValues | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Attention output [B, T, D]; with `past` also over what it holds, which grows by the T positions.

        With `mask`, bool [B, 1, T, T], each position sees what is true there; else all before it.
        """
        num_sequences, length, _ = x_BTD.shape
        # As many heads as the projections give: of tensor parallel layers those of this rank.
        heads = (num_sequences, length, -1, self.head_dim)
        q_BHTE = self.q_proj(x_BTD).view(heads).transpose(1, 2)
        k_BKTE = self.k_proj(x_BTD).view(heads).transpose(1, 2)
        v_BKTE = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        q_BHTE = rotate(q_BHTE, cos_TE, sin_TE)
        k_BKTE = rotate(k_BKTE, cos_TE, sin_TE)
        if past is not None:
            k_BKTE, v_BKTE = past.grow(k_BKTE, v_BKTE)
        # A single newest position may see everything; several are only ever the first.
        is_causal = (length > 1 or past is None) and mask is None
        mixed_BHTE = functional.scaled_dot_product_attention(
            q_BHTE,
            k_BKTE,
            v_BKTE,
            attn_mask=mask,
            is_causal=is_causal,
            enable_gqa=self.is_grouped,
        )
        out: Tensor = self.o_proj(mixed_BHTE.transpose(1, 2).reshape(num_sequences, length, -1))
        return out


class Mlp(nn.Module):
    """Gated SiLU feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x)), [B, T, D]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Order of definition = canonical order of the parameters, the same as in transformers.
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)

    def forward(
        self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, past: KeyValues | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Hidden states after this block, [B, T, D]."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE, past, mask)
        out: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out


class NativeStage(StageModule):
    """Layers of one span, with the embedding in the first and norm and head in the last stage."""

    takes_positions = True
    takes_targets = True

    def __init__(self, config: ModelConfig, span: StageSpan, device: torch.device) -> None:
        super().__init__()
        self.span = span
        with torch.device("meta"):
            # With a weight given, nn.Embedding skips its own initialisation, which on the meta device imports the whole
            # of torch._dynamo (1.7 s, 70 MB).
            weight = torch.empty(config.vocab_size, config.hidden_size)
            embedding = nn.Embedding(config.vocab_size, config.hidden_size, _weight=weight)
            self.embed_tokens = embedding if span.is_first else None
            self.layers = nn.ModuleDict(
                {str(index): Block(config) for index in range(span.first_layer, span.end_layer)}
            )
            self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps) if span.is_last else None
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if span.is_last else None
        if device.type != "meta":
            self.allocate(device)
        cos_TE, sin_TE = rotary_tables(config.seq_len, config.head_dim, config.rope_theta)
        self.register_buffer("cos_TE", cos_TE.to(device), persistent=False)
        self.register_buffer("sin_TE", sin_TE.to(device), persistent=False)

    def global_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their global names, in canonical order."""
        for name, param in self.named_parameters():
            yield (name if name.startswith("lm_head.") else f"model.{name}"), param

    def blocks(self) -> Iterator[nn.Module]:
        """The layers of the span."""
        return iter(self.layers.values())

    def forward(self, x: Tensor, positions_BT: Tensor | None = None, targets_BT: Tensor | None = None) -> Tensor:
        """Ids or hidden states in, hidden states, logits or the sum of losses out."""
        return self.output(self._hidden(x, [None] * len(self.layers), positions_BT), targets_BT)

    def token_matrices(self) -> Iterator[tuple[nn.Module, str]]:
        """Embedding and head."""
        return ((module, "weight") for module in (self.embed_tokens, self.lm_head) if module is not None)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """The head."""
        assert self.lm_head is not None
        logits_BTV: Tensor = self.lm_head(hidden_BTD)
        return logits_BTV

    def new_cache(self) -> list[KeyValues]:
        """One for each block."""
        return [KeyValues() for _ in self.layers]

    def extend(self, ids_BT: Tensor, cache: Sequence[KeyValues]) -> Tensor:
        """Logits of tokens that follow those in the cache."""
        return self.logits(self._hidden(ids_BT, cache))

    def _hidden(self, x: Tensor, pasts: Sequence[KeyValues | None], positions_BT: Tensor | None = None) -> Tensor:
        hidden_BTD: Tensor = self.embed_tokens(x) if self.embed_tokens is not None else x
        cos, sin, mask = self.get_buffer("cos_TE"), self.get_buffer("sin_TE"), None
        if positions_BT is None:
            start = pasts[0].length if pasts[0] is not None else 0
            stop = start + hidden_BTD.shape[1]
            cos, sin = cos[start:stop], sin[start:stop]
        else:
            # [B, 1, T, E]: each sequence has positions of its own, the same for all heads.
            cos, sin, mask = cos[positions_BT].unsqueeze(1), sin[positions_BT].unsqueeze(1), document_mask(positions_BT)
        for block, past in zip(self.layers.values(), pasts, strict=True):
            hidden_BTD = block(hidden_BTD, cos, sin, past, mask)
        return hidden_BTD if self.norm is None else self.norm(hidden_BTD)


def rotary_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, E] of the rotary positions, halves repeated (the layout of transformers' Llama)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles_TE = torch.cat((angles, angles), dim=-1)
    return angles_TE.cos(), angles_TE.sin()


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotary positions applied to queries or keys, [B, H, T, E]."""
    first, second = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos_TE + torch.cat((-second, first), dim=-1) * sin_TE
