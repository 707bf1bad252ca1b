"""Sections of run.toml that say what a run begins with: first parameters, tokenizer, seeds, who may join."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from dilocoxd.config.fields import Section, Sha256Hex, knob
from dilocoxd.ids import PEER_ID_FORM

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,200}$")]


TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt", "tokenizer.model", "spiece.model"),
)
"""Everything of a tokenizer that transformers looks for; only the first must be there."""
TOKENIZER_FILE_BYTES_MAX = 64 << 20
"""Twice the largest that is known. A newcomer takes no larger one from a peer, so no run begins with one."""


class InitSection(Section):
    """Pretrained weights. Empty: a run from scratch, whose first state every site computes from seeds.model."""

    files: Annotated[
        dict[FileName, Sha256Hex],
        knob(
            "Files of weights that the run started from, by name; a site that has them needs not fetch them.",
            unit="sha256 in hex",
            cost="none.",
            max_length=4096,
        ),
    ] = Field(default_factory=dict)
    state_digest: Annotated[
        Sha256Hex,
        knob(
            "Digest of shared state 0, made of these files by `dilocoxd start --init`.",
            unit="sha256 in hex",
            cost="every site keeps snapshot 0 for good.",
        ),
    ] = ""
    parent: Annotated[
        str,
        knob(
            "Run and round that the first parameters were taken from by `dilocoxd start --from`; state_digest is"
            " what counts.",
            unit="RUN@ROUND",
            cost="none.",
            pattern=r"^([a-z0-9][a-z0-9-]{0,31}-[0-9a-f]{16}@[0-9]{1,19})?$",
        ),
    ] = ""


class TokenizerSection(Section):
    """How text becomes tokens; the size is model.vocab_size."""

    kind: Annotated[
        Literal["bpe", "files"],
        knob(
            "bpe: byte-level BPE trained on the corpus. files: a tokenizer.json that the founder gave; other sites get"
            " it from peers with the text.",
            unit="choice",
            cost="seconds once per machine.",
        ),
    ] = "bpe"
    sha256: Annotated[
        Sha256Hex,
        knob(
            "Hash of the tokenizer file that every site must end up with; empty is no check.",
            unit="sha256 in hex",
            cost="sites refuse to start when it differs.",
        ),
    ] = ""

    files: Annotated[
        dict[FileName, Sha256Hex],
        knob(
            "All files of a given tokenizer, its chat template too, by name; other sites get them from peers.",
            unit="sha256 in hex",
            cost="none.",
            max_length=len(TOKENIZER_FILES),
        ),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_files(self) -> Self:
        unknown = sorted(self.files.keys() - set(TOKENIZER_FILES))
        if unknown:
            raise ValueError(f"tokenizer.files names {unknown[0]}; it can be {', '.join(TOKENIZER_FILES)}")
        return self


class SeedsSection(Section):
    """Where randomness starts."""

    model: Annotated[
        int, knob("Initial weights.", unit="integer", cost="another seed is another run.", ge=0, lt=2**63)
    ] = 0
    data: Annotated[
        int, knob("Order of the training data.", unit="integer", cost="another seed is another run.", ge=0, lt=2**63)
    ] = 0


FounderId = Annotated[str, StringConstraints(pattern=f"^{PEER_ID_FORM}$")]
AuthorityKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class AdmissionSection(Section):
    """Who may join the run."""

    mode: Annotated[
        Literal["invite", "open", "closed"],
        knob(
            "invite: who holds a link that an authority certified. open: whoever finds a site of the run. closed: the"
            " peer ids that each site lists in network.peers_allowed.",
            unit="choice",
            cost="open: everybody who can reach a port takes part, and may come back under any name.",
        ),
    ] = "invite"
    authorities: Annotated[
        tuple[AuthorityKey, ...],
        knob(
            "Public keys of those who certify invites. Empty: `dilocoxd start` makes one and keeps it in the run"
            " directory.",
            unit="Ed25519 keys in hex",
            cost="none.",
            max_length=16,
            strict=False,
        ),
    ] = ()
    threshold: Annotated[
        int,
        knob(
            "So many authorities must sign an invite or an eviction.",
            unit="authorities",
            cost="with more than one nobody decides alone, and each link takes several people.",
            ge=1,
            le=16,
        ),
    ] = 1

    probation_rounds: Annotated[
        int,
        knob(
            "Open runs: who enters is on probation until it contributed to so many rounds. Its weight rises meanwhile;"
            " it counts in no majority, sums nothing for others, and commits nothing alone. 0: it counts at once.",
            unit="rounds",
            cost="honest newcomers weigh less for so long, and a round takes one newcomer beside every two others.",
            ge=0,
            le=1024,
        ),
    ] = 16
    founders: Annotated[
        tuple[FounderId, ...],
        knob(
            "Open runs: sites that are never on probation. Empty: those who contribute to the first entry.",
            unit="peer ids",
            cost="nothing is trained before one of them is there.",
            max_length=64,
            strict=False,
        ),
    ] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.founders and not (self.mode == "open" and self.probation_rounds):
            raise ValueError(
                f"admission.founders names {len(self.founders)} sites, but nobody is on probation with admission.mode ="
                f" {self.mode!r} and admission.probation_rounds = {self.probation_rounds}; leave founders out, or set"
                " mode = 'open' and probation_rounds = 16"
            )
        if len(set(self.founders)) != len(self.founders):
            raise ValueError("admission.founders names a site twice; name each once")
        if len(set(self.authorities)) != len(self.authorities):
            raise ValueError("admission.authorities names a key twice; name each once")
        if self.authorities and self.threshold > len(self.authorities):
            raise ValueError(
                f"admission.threshold = {self.threshold}, but admission.authorities names {len(self.authorities)};"
                " lower it, or name more authorities"
            )
        return self
