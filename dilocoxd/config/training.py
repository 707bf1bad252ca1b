"""Sections of run.toml that say what one site trains: model, tokenizer, data, inner optimizer, seeds."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from dilocoxd.config.fields import Section, Sha256Hex, knob


class ModelSection(Section):
    """Sizes of a LLaMA-shaped decoder; fixed for the life of a run."""

    kind: Annotated[
        Literal["native", "llama", "qwen2", "qwen3", "mistral"],
        knob(
            "Which implementation builds the layers: the built-in one, or a transformers family.",
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

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
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
        if self.extra and self.kind == "native":
            raise ValueError(
                f"model.extra = {sorted(self.extra)} means nothing to model.kind = 'native'; remove it or choose a"
                " transformers family"
            )
        return self


class TokenizerSection(Section):
    """How text becomes tokens; the size is model.vocab_size."""

    kind: Annotated[
        Literal["bpe"],
        knob("Byte-level BPE trained on the corpus.", unit="choice", cost="seconds once per machine."),
    ] = "bpe"
    sha256: Annotated[
        Sha256Hex,
        knob(
            "Hash of the tokenizer file that every site must end up with; empty is no check.",
            unit="sha256 in hex",
            cost="sites refuse to start when it differs.",
        ),
    ] = ""


class DataSection(Section):
    """The text. Every site reads the same corpus in an order of its own: (seeds.data, peer, position)."""

    corpus: Annotated[
        str,
        knob(
            "english (the first that can be had of gcide and stdlib), gcide, python-doc, linux-doc, stdlib, or the path"
            " of a text file or folder that exists at every site.",
            unit="text",
            cost="tokenised once per machine.",
            min_length=1,
            max_length=512,
        ),
    ]
    chars_max: Annotated[
        int,
        knob(
            "Use at most this much of the corpus, evenly spread; 0 is all of it.",
            unit="characters",
            cost="more takes longer to tokenise.",
            ge=0,
            le=1 << 40,
        ),
    ] = 12 << 20
    validation_fraction: Annotated[
        float,
        knob(
            "Part of the corpus that is never trained on.",
            unit="fraction",
            cost="what is held out is not learnt.",
            gt=0,
            le=0.5,
        ),
    ] = 0.02
    validation_sequences: Annotated[
        int,
        knob(
            "Sequences of the held-out part used for one validation loss.",
            unit="sequences",
            cost="each costs a forward pass while training stands still.",
            ge=1,
            le=100_000,
        ),
    ] = 64
    evaluate_every_rounds: Annotated[
        int,
        knob(
            "Validation loss of the shared model after every so many rounds; 0 never.",
            unit="rounds",
            cost="see validation_sequences.",
            ge=0,
            le=1_000_000,
        ),
    ] = 1
    sha256: Annotated[
        Sha256Hex,
        knob(
            "Hash of the tokenised corpus that every site must end up with; empty is no check.",
            unit="sha256 in hex",
            cost="sites refuse to start when it differs.",
        ),
    ] = ""


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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch_sequences % self.microbatches:
            raise ValueError(
                f"inner.batch_sequences = {self.batch_sequences} is not a multiple of inner.microbatches ="
                f" {self.microbatches}; change one of them"
            )
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


class SeedsSection(Section):
    """Where randomness starts."""

    model: Annotated[
        int, knob("Initial weights.", unit="integer", cost="another seed is another run.", ge=0, lt=2**63)
    ] = 0
    data: Annotated[
        int, knob("Order of the training data.", unit="integer", cost="another seed is another run.", ge=0, lt=2**63)
    ] = 0
