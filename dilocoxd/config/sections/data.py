"""Section of run.toml that says which text is read, and how much of it is held out."""

from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

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
            cost="every site needs every store that is not private (or a volume of it), and one of those that are.",
            max_length=64,
            strict=False,
        ),
    ] = ()
    shared_share: Annotated[
        tuple[Annotated[int, Field(ge=1, le=10_000)], ...],
        knob(
            "Where some sources are private and others not: [a, b], of b samples a site reads a from the shared ones"
            " and the others from its own. Empty where all of them are shared, or all private.",
            unit="samples",
            cost="what is read of one kind is not read of the other.",
            max_length=2,
            strict=False,
        ),
    ] = ()

    volumes: Annotated[
        int,
        knob(
            "Volumes into which each shared token store is cut, of whole shards and about as many tokens each. A site"
            " needs one of them; a phase reads one.",
            unit="volumes",
            cost="each is leased by itself: more samples wait in queues, and a phase reads text of one part only.",
            ge=1,
            le=1024,
        ),
    ] = 1

    @model_validator(mode="after")
    def _share_fits_sources(self) -> Self:
        private = ", ".join(source.name for source in self.sources if source.private)
        if len({source.private for source in self.sources}) > 1:
            if len(self.shared_share) != 2 or self.shared_share[0] >= self.shared_share[1]:
                raise ValueError(
                    f"data.sources: {private} private and others not, so data.shared_share must say how many samples of"
                    f" how many are read from the others, for example [1, 2]; it is {list(self.shared_share)}"
                )
        elif self.shared_share:
            raise ValueError(
                f"data.shared_share = {list(self.shared_share)} is for runs with private stores beside shared ones, but"
                f" {'all' if private else 'none'} of data.sources are private; remove it"
            )
        return self

    @property
    def has_private(self) -> bool:
        """Whether there are stores that only their owners read."""
        return any(source.private for source in self.sources)

    @property
    def has_leases(self) -> bool:
        """Whether there are stores of which each sample is read by one of the sites."""
        return not all(source.private for source in self.sources)

    @property
    def num_volumes(self) -> int:
        """Volumes of what is leased."""
        return self.volumes if self.has_leases else 1

    @property
    def leased_share(self) -> tuple[int, int]:
        """(a, b): of b samples that a site reads, a are leased."""
        return (self.shared_share[0], self.shared_share[1]) if self.shared_share else (int(self.has_leases), 1)

    @model_serializer(mode="wrap")
    def _without_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A run of before has no such fields, and its bytes must stay the same.
        tables: dict[str, Any] = dump(self)
        if self.volumes == 1:
            del tables["volumes"]
        return {name: value for name, value in tables.items() if value or name not in ("sources", "shared_share")}

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
