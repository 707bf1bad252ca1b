"""Section of run.toml that says which text is read, and how much of it is held out."""

from typing import Annotated, Any, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from dilocoxd.config.fields import Section, Sha256Hex, knob
from dilocoxd.config.sections.sources import SourceSection


class DataSection(Section):
    """The text. With `sources`, each sample is read once an epoch by one of the sites, as the chain says; else every
    site reads the same corpus in an order of its own: (seeds.data, peer, position)."""

    sources: Annotated[
        tuple[SourceSection, ...],
        knob(
            "Token stores to train on, instead of a corpus: tables [[data.sources]] with name, sha256, num_tokens,"
            " weight and private. `--data NAME=STORE` fills them in.",
            unit="tables",
            cost="every site needs every store, or, where all are private, one of them.",
            max_length=64,
            strict=False,
        ),
    ] = ()

    @model_validator(mode="after")
    def _all_or_none_private(self) -> Self:
        if len({source.private for source in self.sources}) > 1:
            names = ", ".join(source.name for source in self.sources if source.private)
            raise ValueError(
                f"data.sources: {names} private and others not, but what is read of shared stores is counted by tokens,"
                " which private ones have too; make all of them private, or none"
            )
        return self

    @property
    def is_private(self) -> bool:
        """Whether each site reads its own stores, and leases nothing."""
        return any(source.private for source in self.sources)

    @model_serializer(mode="wrap")
    def _without_empty_sources(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A run of before has no such field, and its bytes must stay the same.
        tables: dict[str, Any] = dump(self)
        if not tables["sources"]:
            del tables["sources"]
        return tables

    document_mask: Annotated[
        bool,
        knob(
            "Whether tokens of a sample see only their own document, whose positions begin at 0, and no document is"
            " predicted from the end of the one before it. Needs token stores with an end token.",
            unit="true or false",
            cost="attention takes a mask of seq_len x seq_len for each sequence, without the fastest kernels.",
        ),
    ] = False
    corpus: Annotated[
        str,
        knob(
            "english (the first that can be had of gcide and stdlib), gcide, python-doc, linux-doc, stdlib, or the name"
            " of a text of the run's own, which `--data NAME=PATH` gives and other sites get from peers.",
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
