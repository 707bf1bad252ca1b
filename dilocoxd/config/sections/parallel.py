"""How one site cuts the model among its processes. Other sites may cut it otherwise, and none of them knows."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from dilocoxd.config.fields import Section, knob

RANKS_MAX: Final = 4096


class ParallelSection(Section):
    """How the model is cut inside this site, pipeline x replicate x shard x tensor processes; docs/cluster.md."""

    pipeline: Annotated[
        int,
        knob(
            "Pipeline stages: groups of whole layers. `stages` is another name of this field.",
            unit="processes",
            cost="more stages, more bubble.",
            ge=1,
            le=1024,
        ),
    ] = 1
    shard: Annotated[
        int,
        knob(
            "Processes that share each stage: parameters, gradients and moments lie in parts, the batch too (FSDP2).",
            unit="processes",
            cost="each layer is gathered for each pass: a fast link between them is needed.",
            ge=1,
            le=1024,
        ),
    ] = 1
    replicate: Annotated[
        int,
        knob(
            "Copies of all that, each with its part of the batch; gradients are summed over them (HSDP).",
            unit="copies",
            cost="memory for each, and an all-reduce of the gradients in each step.",
            ge=1,
            le=1024,
        ),
    ] = 1
    tensor: Annotated[
        int,
        knob(
            "Processes that compute each layer together: heads, units and vocabulary are divided among them, not the"
            " batch. Must divide model.num_heads, num_kv_heads and intermediate_size.",
            unit="processes",
            cost="two sums of hidden states for each layer in each pass: a very fast link is needed; norms are whole in"
            " each.",
            ge=1,
            le=1024,
        ),
    ] = 1
    sequence: Annotated[
        bool,
        knob(
            "Under tensor, divide positions as well between the matrices of a layer: each process has norms and"
            " residual stream of some of them. tensor must divide model.seq_len.",
            unit="switch",
            cost="one gather of hidden states more for each stage in each pass; each sum is made in two halves.",
        ),
    ] = False
    activation_checkpointing: Annotated[
        Literal["none", "block"],
        knob(
            "block: keep only what goes into each block, compute the rest again in the backward pass.",
            unit="choice",
            cost="block takes up to a third more time and saves most of the activations' memory.",
        ),
    ] = "none"
    loss_chunk_tokens: Annotated[
        int,
        knob(
            "Positions that have logits at a time; 0: all of a microbatch. With a large vocabulary its logits are the"
            " largest thing on the device.",
            unit="tokens",
            cost="logits are computed twice, and small chunks use a device badly; 1024 to 4096 suit GPUs.",
            ge=0,
            le=1 << 24,
        ),
    ] = 0
    batch_sequences: Annotated[
        int,
        knob(
            "Sequences per inner step of this site, at most inner.batch_sequences_max; 0 is the run's number."
            " What it contributes weighs as much as it has tokens.",
            unit="sequences",
            cost="a small batch is noisy, a large one takes longer; the learning rate is the run's.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    dtype: Annotated[
        Literal["", "float32", "bfloat16"],
        knob(
            "Arithmetic of forward and backward passes here, of inner.dtypes_allowed; empty: the run's inner.dtype."
            " Parameters stay float32.",
            unit="choice",
            cost="bfloat16 is faster and a little less exact.",
        ),
    ] = ""
    traffic: Annotated[
        Literal["float32", "bfloat16"],
        knob(
            "What hidden states between stages, and blocks gathered under shard, travel as inside this site; gradients"
            " of parameters are summed in float32. bfloat16 asks for dtype bfloat16.",
            unit="choice",
            cost="bfloat16 halves these bytes, and rounds the residual stream between stages and the norms.",
        ),
    ] = "float32"
    compile: Annotated[
        bool,
        knob(
            "Compile each block when it first computes (torch.compile). Asks for a compiler: of C++ on CPUs, of C and"
            " Triton with GPUs.",
            unit="switch",
            cost="compiling takes minutes, after a restart with the same code seconds; sums are made in another order.",
        ),
    ] = False
    microbatches: Annotated[
        int,
        knob(
            "Pieces of a batch at this site; 0: one without a pipeline, else inner.microbatches of the run.",
            unit="pieces",
            cost="none.",
            ge=0,
            le=65536,
        ),
    ] = 0
    schedule: Annotated[
        Literal["1f1b", "gpipe", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble"],
        knob(
            "Pipeline schedule; interleaved ones need stages_per_process of at least 2, zbvzerobubble exactly 2. The"
            " zero-bubble ones compute gradients of weights while others wait for those of inputs.",
            unit="choice",
            cost="gpipe keeps more activations in memory, the last three send more; zero-bubble ones keep more, too.",
        ),
    ] = "1f1b"
    stages_per_process: Annotated[
        int,
        knob(
            "Slices of the model in each process; more than 1 only with the last three schedules.",
            unit="slices",
            cost="more of them shorten the bubble and send more.",
            ge=1,
            le=64,
        ),
    ] = 1
    layers_per_stage: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        knob(
            "Layers of each slice of the model, in its order; empty: so that all have equally much arithmetic. For"
            " devices that are not equally fast.",
            unit="list",
            cost="the slowest stage is the speed of the pipeline.",
            max_length=1024,
            strict=False,
        ),
    ] = ()
    measured_cut: Annotated[
        bool,
        knob(
            "Take at each start of the trainers the layers of each slice with which a step takes less, by what the last"
            " ones measured, where that is a tenth of it or more; it begins with layers_per_stage.",
            unit="switch",
            cost="a fast device gets more layers, and so needs more memory than is estimated.",
        ),
    ] = False
    backend: Annotated[
        Literal["gloo", "nccl"],
        knob("Transport between processes: gloo on CPU, nccl on GPU.", unit="choice", cost="none."),
    ] = "gloo"
    device: Annotated[Literal["cpu", "cuda"], knob("Where stages compute.", unit="choice", cost="none.")] = "cpu"
    threads_per_rank: Annotated[
        int,
        knob(
            "CPU threads of one process; 0: as many as there are cores for each (cores / processes of its machine).",
            unit="threads",
            cost="too many fight over the cores.",
            ge=0,
            le=1024,
        ),
    ] = 0

    @model_validator(mode="before")
    @classmethod
    def _stages_are_the_pipeline(cls, value: Any) -> Any:
        return with_pipeline(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.backend == "nccl") != (self.device == "cuda"):
            raise ValueError(
                f"parallel.backend = '{self.backend}' does not go with parallel.device = '{self.device}';"
                " use gloo with cpu, nccl with cuda"
            )
        if self.sequence and self.tensor == 1:
            raise ValueError(
                "parallel.sequence = true divides positions among the processes of parallel.tensor, and that is 1; set"
                " parallel.tensor to 2 or more, or parallel.sequence to false"
            )
        if self.ranks > RANKS_MAX:
            raise ValueError(
                f"parallel.pipeline x replicate x shard x tensor = {self.ranks} processes are more than {RANKS_MAX};"
                " lower one of them"
            )
        return self

    @property
    def stages(self) -> int:
        """`pipeline` by its other name."""
        return self.pipeline

    @property
    def readers(self) -> int:
        """Parts of the batch: each is computed by `tensor` processes of a stage together."""
        return self.replicate * self.shard

    @property
    def in_stage(self) -> int:
        """Processes of one stage."""
        return self.readers * self.tensor

    @property
    def ranks(self) -> int:
        """Trainer processes of the site, one GPU each."""
        return self.pipeline * self.in_stage

    def sequences(self, of_run: int) -> int:
        """Sequences of an inner step here, where the run says `of_run`."""
        return self.batch_sequences or of_run

    def dtype_of(self, of_run: str) -> str:
        """Arithmetic here, where the run says `of_run`."""
        return self.dtype or of_run

    def pieces(self, of_run: int) -> int:
        """Microbatches here, where the run says `of_run`: without a pipeline there is nothing to fill with them."""
        return self.microbatches or (of_run if self.pipeline > 1 else 1)


def with_pipeline(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of the section with `stages` under the name `pipeline`. Raises ValueError if both are there and differ.

    >>> with_pipeline({"stages": 2})
    {'pipeline': 2}
    """
    renamed = {name: value for name, value in fields.items() if name != "stages"}
    if "stages" not in fields:
        return renamed
    stages = fields["stages"]
    if renamed.setdefault("pipeline", stages) != stages:
        raise ValueError(
            f"parallel.stages = {stages} and parallel.pipeline = {renamed['pipeline']} are one field under two names;"
            " remove stages"
        )
    return renamed
