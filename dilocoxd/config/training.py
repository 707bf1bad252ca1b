"""Sections of run.toml that say what one site trains: model and inner optimizer."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from dilocoxd.config import hugging_face
from dilocoxd.config.fields import Section, Sha256Hex, knob
from dilocoxd.config.hugging_face import CONFIG_CHARACTERS_MAX
from dilocoxd.config.sections import own_module

EXTRA_KEYS: Final = frozenset(
    {"attention_bias", "attention_dropout", "hidden_act", "layer_types", "max_window_layers", "mlp_bias"}
    | {"no_rope_layers", "partial_rotary_factor", "rope_parameters", "sliding_window", "use_sliding_window"}
)
"""Of model.extra: shape of attention and activation, nothing that loads, allocates or runs anything."""


class ModelSection(Section):
    """Sizes of a LLaMA-shaped decoder; fixed for the life of a run."""

    kind: Annotated[
        Literal["native", "llama", "qwen2", "qwen3", "mistral", "hf", "python", "external"],
        knob(
            "Which implementation builds the layers: the built-in one, a transformers family of these sizes, hf: the"
            " model that `config` describes, python: a model that an installed package brings (`entry_point`), or"
            " external: a torch module of your own, in a training loop of your own.",
            unit="choice",
            cost="transformers families start some seconds slower than native.",
        ),
    ] = "native"
    vocab_size: Annotated[
        int,
        knob(
            "Entries of the token embedding, and the size to which the tokenizer is trained.",
            unit="tokens",
            cost="parameters and memory grow by 2 x hidden_size for each entry.",
            ge=64,
            le=1_000_000,
        ),
    ]
    hidden_size: Annotated[
        int,
        knob(
            "Width of the residual stream.",
            unit="elements",
            cost="time and memory grow with its square.",
            ge=8,
            le=65_536,
        ),
    ]
    num_layers: Annotated[
        int,
        knob(
            "Transformer blocks; the upper limit for pipeline stages.",
            unit="blocks",
            cost="time and memory grow with it.",
            ge=1,
            le=1024,
        ),
    ]
    num_heads: Annotated[
        int,
        knob(
            "Attention heads; must divide hidden_size.",
            unit="heads",
            cost="many narrow heads are slower than few wide ones.",
            ge=1,
            le=1024,
        ),
    ]
    num_kv_heads: Annotated[
        int,
        knob(
            "Key and value heads; must divide num_heads. Fewer save memory when generating text.",
            unit="heads",
            cost="few of them lose some quality.",
            ge=1,
            le=1024,
        ),
    ]
    intermediate_size: Annotated[
        int,
        knob(
            "Width inside the feed-forward part.",
            unit="elements",
            cost="time and memory grow with it.",
            ge=8,
            le=262_144,
        ),
    ]
    seq_len: Annotated[
        int,
        knob(
            "Length of a training sequence.",
            unit="tokens",
            cost="attention time grows with its square.",
            ge=8,
            le=1_048_576,
        ),
    ]
    rope_theta: Annotated[
        float,
        knob(
            "Base of the rotary positions; larger for longer sequences.",
            unit="1",
            cost="too large blurs near positions.",
            gt=0,
            le=1e9,
        ),
    ] = 10_000.0
    norm_eps: Annotated[
        float,
        knob("Added below the root in RMS norms.", unit="1", cost="too large damps small signals.", gt=0, le=0.01),
    ] = 1e-5
    init_std: Annotated[
        float,
        knob(
            "Standard deviation of freshly initialised weights.",
            unit="1",
            cost="too large makes the first steps unstable, too small slows them.",
            gt=0,
            le=1,
        ),
    ] = 0.02
    extra: Annotated[
        dict[str, JsonValue],
        knob(
            "Further fields of the transformers config (rope scaling, sliding window); empty for native.",
            unit="table",
            cost="none by itself.",
        ),
    ] = Field(default_factory=dict)
    config: Annotated[
        str,
        knob(
            "For kind = hf: config.json of a Hugging Face model as one line of JSON; the sizes above must be its own."
            " For kind = external: names and shapes of the parameters; the sizes above then mean nothing, but"
            " seq_len x inner.batch_sequences (or batch_sequences_max, where that is larger) is the most tokens that a"
            " step may count. `dilocoxd start --init`, `--config` and `--module` write it.",
            unit="text",
            cost="none.",
            max_length=CONFIG_CHARACTERS_MAX,
        ),
    ] = ""

    entry_point: Annotated[
        str,
        knob(
            "Name of an own model in the group dilocoxd.models, for kind = python; every site needs the package that"
            " brings it. `dilocoxd start --model NAME` writes it.",
            unit="text",
            cost="none.",
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$",
        ),
    ] = ""
    entry_sha256: Annotated[
        Sha256Hex,
        knob(
            "Hash of the file with the own model's class; a site whose file is another one is refused.",
            unit="sha256 in hex",
            cost="none.",
        ),
    ] = ""

    @field_validator("extra")
    @classmethod
    def _is_known(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A manifest comes from others: what transformers does with any other key, nobody here has looked at."""
        if unknown := sorted(value.keys() - EXTRA_KEYS):
            raise ValueError(
                f"model.extra has {', '.join(unknown)}, which no run may set; allowed are"
                f" {', '.join(sorted(EXTRA_KEYS))}"
            )
        return value

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.kind == "hf":
            return self._config_fits()
        if self.kind == "external":
            own_module.parse_shapes(self.config)
        elif self.config:
            raise ValueError(f"model.config means nothing to model.kind = {self.kind!r}; remove it or choose 'hf'")
        if (self.kind == "python") != bool(self.entry_point and self.entry_sha256):
            raise ValueError(
                f"model.kind = {self.kind!r}, model.entry_point = {self.entry_point!r}, model.entry_sha256 ="
                f" {self.entry_sha256[:16]!r}: only 'python' has the last two, and both; let `dilocoxd start --model`"
                " write them"
            )
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"model.hidden_size = {self.hidden_size} is not a multiple of model.num_heads = {self.num_heads};"
                " change one of them"
            )
        if (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"model.hidden_size / model.num_heads = {self.hidden_size // self.num_heads} is odd, but rotary"
                " positions need an even head size; change one of them"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads = {self.num_heads} is not a multiple of model.num_kv_heads = {self.num_kv_heads};"
                " change one of them"
            )
        if self.extra and self.kind in ("native", "python"):
            raise ValueError(
                f"model.extra = {sorted(self.extra)} means nothing to model.kind = {self.kind!r}; remove it or choose a"
                " transformers family"
            )
        return self

    def _config_fits(self) -> Self:
        """What `config` says is what the sizes say: a transformers library is not needed to know them."""
        table = hugging_face.parse_config(self.config)
        for name, value in hugging_face.sizes(table).items():
            if getattr(self, name) != value:
                raise ValueError(f"model.{name} = {getattr(self, name)}, but model.config says {value}; use that")
        longest = hugging_face.positions(table)
        if longest and self.seq_len > longest:
            raise ValueError(
                f"model.seq_len = {self.seq_len} is longer than the {longest} positions of model.config; lower it"
            )
        if self.extra or self.entry_point or self.entry_sha256:
            name = "extra" if self.extra else "entry_point"
            raise ValueError(f"model.{name} means nothing to model.kind = 'hf'; change model.config instead")
        return self


class InnerSection(Section):
    """The optimizer inside a site."""

    optimizer: Annotated[
        Literal["adamw", "muon"],
        knob(
            "Inner optimizer: adamw for everything, or muon for the matrices inside the blocks and adamw for"
            " embeddings, head and vectors. Muon loses less under compression. Source: MuLoCo, arXiv 2505.23725.",
            unit="choice",
            cost="adamw keeps two more copies of the parameters; muon one, and five small matrix products per matrix"
            " and step.",
        ),
    ] = "adamw"
    muon_momentum: Annotated[
        float,
        knob(
            "How long gradients go on acting in optimizer = muon. Source: arXiv 2502.16982.",
            unit="1/step",
            cost="higher reacts later.",
            ge=0,
            lt=1,
        ),
    ] = 0.95
    lr: Annotated[
        float, knob("Peak learning rate.", unit="1/step", cost="too high diverges, too low wastes steps.", gt=0, le=1)
    ]
    beta1: Annotated[
        float, knob("Decay of the mean of gradients.", unit="1/step", cost="higher reacts later.", ge=0, lt=1)
    ] = 0.9
    beta2: Annotated[
        float, knob("Decay of the mean of squared gradients.", unit="1/step", cost="higher reacts later.", ge=0, lt=1)
    ] = 0.95
    eps: Annotated[
        float, knob("Added to the root of the second moment.", unit="1", cost="too large damps steps.", gt=0, le=1e-2)
    ] = 1e-8
    weight_decay: Annotated[
        float, knob("Decoupled decay of matrices.", unit="1/step / lr", cost="too high forgets.", ge=0, le=10)
    ] = 0.1
    warmup_steps: Annotated[
        int, knob("Linear rise of the learning rate.", unit="inner steps", cost="slow start.", ge=0, le=1_000_000)
    ] = 0
    total_steps: Annotated[
        int,
        knob(
            "Where the cosine reaches min_lr_ratio; the learning rate stays there afterwards.",
            unit="inner steps",
            cost="too short stops learning early.",
            ge=1,
            le=100_000_000,
        ),
    ]
    min_lr_ratio: Annotated[
        float, knob("Learning rate at the end, as part of lr.", unit="fraction", cost="none.", ge=0, le=1)
    ] = 0.1
    clip_norm: Annotated[
        float,
        knob(
            "Largest norm of the gradient across all stages; 0 is no clipping.",
            unit="norm",
            cost="one small all-reduce inside the site per step.",
            ge=0,
            le=1e6,
        ),
    ] = 1.0
    batch_sequences: Annotated[
        int,
        knob(
            "Sequences per inner step of one site.", unit="sequences", cost="time per step grows.", ge=1, le=1_000_000
        ),
    ]
    batch_sequences_max: Annotated[
        int,
        knob(
            "Most sequences per inner step that a site may choose for itself (parallel.batch_sequences in site.toml);"
            " 0: all use batch_sequences. A contribution weighs as much as it has tokens.",
            unit="sequences",
            cost="one learning rate serves all batches: far from batch_sequences it fits less well.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    microbatches: Annotated[
        int,
        knob(
            "Pieces a batch is cut into; must divide batch_sequences. More shorten the pipeline bubble."
            " A site may choose its own number in site.toml.",
            unit="pieces",
            cost="small pieces use a device badly.",
            ge=1,
            le=65_536,
        ),
    ]
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        knob(
            "Arithmetic of forward and backward passes; parameters stay float32.",
            unit="choice",
            cost="bfloat16 is faster and a little less exact.",
        ),
    ] = "float32"
    dtypes_allowed: Annotated[
        tuple[Literal["float32", "bfloat16"], ...],
        knob(
            "Arithmetic that a site may choose for itself (parallel.dtype in site.toml) besides dtype; empty: all use"
            " dtype. float32, bfloat16. What sites tell each other has the same form in any.",
            unit="list",
            cost="none: contributions of bfloat16 weigh as much as those of float32.",
            max_length=2,
            strict=False,
        ),
    ] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch_sequences % self.microbatches:
            raise ValueError(
                f"inner.batch_sequences = {self.batch_sequences} is not a multiple of inner.microbatches ="
                f" {self.microbatches}; change one of them"
            )
        if 0 < self.batch_sequences_max < self.batch_sequences:
            raise ValueError(
                f"inner.batch_sequences_max = {self.batch_sequences_max} is below inner.batch_sequences ="
                f" {self.batch_sequences}; raise it, or set it to 0"
            )
        if len(set(self.dtypes_allowed)) != len(self.dtypes_allowed):
            raise ValueError("inner.dtypes_allowed names one twice; name each once")
        if self.optimizer != "muon" and self.muon_momentum != 0.95:
            raise ValueError(
                f"inner.muon_momentum = {self.muon_momentum} means nothing to inner.optimizer = {self.optimizer!r};"
                " remove it or choose 'muon'"
            )
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"inner.warmup_steps = {self.warmup_steps} leaves nothing of inner.total_steps = {self.total_steps};"
                " shorten the warm-up or train longer"
            )
        return self
