"""Decides whether a run can be cut as a site wants it: what neither run.toml nor site.toml can tell alone."""

import ipaddress
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

from dilocoxd.config.hugging_face import parse_config
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.parallel import ParallelSection
from dilocoxd.config.sections.schedules import SliceOrder, schedule_problem, split_backward_problem
from dilocoxd.config.sections.sources import SourceSection, require_read
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.tokens.files import files_of
from dilocoxd.errors import ConfigError

_CUTS: Final = (
    *("pipeline", "shard", "replicate", "tensor", "sequence", "stages_per_process", "activation_checkpointing"),
    *("loss_chunk_tokens", "dtype", "traffic", "compile", "layers_per_stage", "measured_cut"),
)
"""Fields of [parallel] that say how trainers cut a model and compute it."""
TENSOR_FAMILIES: Final = ("native", "llama", "qwen2", "qwen3", "mistral", "smollm3", "gemma3_text")
"""Whose blocks are one attention and one gated MLP, without anything that needs all heads or all units at once."""
_UNWATCHED: Final = "no site whose contributions do harm (alert harmful_contribution) is named"
GPU_CODECS: Final = ("fp32", "fp16", "bf16", "int8", "int4", "int2")
"""What `workers.encode_device = "cuda"` encodes; outer/on_gpu.py has them too, for it loads torch (a test compares)."""
LOSSES_MIN: Final = 2
"""Of batches, that a loop tells: what one contribution did is compared batch by batch."""
OUTER_PARTS_MAX: Final = 64
"""Of a site, on all its machines; wire/placement.py has it too, for it lies above (a test compares them)."""


def site_problems(manifest: Manifest, site: SiteConfig) -> list[str]:
    """What keeps this site from training this run, a sentence each; the trainers would refuse it after their start."""
    if manifest.model.kind == "external":
        return [*_own_loop_problems(site), *_outer_worker_problems(manifest, site), *_uploads_problems(site)]
    parallel, layers = site.parallel, manifest.model.num_layers
    batch = parallel.sequences(manifest.inner.batch_sequences)
    stages = parallel.stages * parallel.stages_per_process
    microbatches = parallel.pieces(manifest.inner.microbatches)
    found = []
    if stages > layers:
        found.append(
            f"{stages} pipeline stages do not fit a model of {layers} layers; give --stages at most"
            f" {layers // parallel.stages_per_process} (parallel.pipeline in site.toml)"
        )
    chosen = parallel.layers_per_stage
    if chosen and (len(chosen), sum(chosen)) != (stages, layers):
        found.append(
            f"parallel.layers_per_stage = {list(chosen)} names {sum(chosen)} layers of {len(chosen)} stages, but the"
            f" model has {layers} layers and this site {stages} stages; change it, or leave it empty"
        )
    if microbatches < parallel.stages:
        found.append(
            f"{microbatches} microbatches cannot fill {parallel.stages} pipeline stages; give --stages at most"
            f" {microbatches}, or --set parallel.microbatches={parallel.stages}"
        )
    largest = max(manifest.inner.batch_sequences, manifest.inner.batch_sequences_max)
    if batch > largest or (batch != largest and not manifest.inner.batch_sequences_max):
        allowed = f"at most {largest}" if manifest.inner.batch_sequences_max else f"{largest} at every site"
        found.append(
            f"parallel.batch_sequences = {batch}, but this run has {allowed} (inner.batch_sequences_max); lower it, or"
            " set it to 0"
        )
    found += _dtype_problems(manifest, parallel)
    found += _schedule_problems(parallel, microbatches)
    if batch % parallel.readers:
        found.append(
            f"a batch of {batch} sequences does not divide among {parallel.readers} processes"
            f" of a stage (parallel.replicate = {parallel.replicate} x parallel.shard = {parallel.shard}); choose a"
            " divisor of the batch"
        )
    elif batch // parallel.readers % microbatches:
        each = f" of {batch} sequences"
        if parallel.readers > 1:
            each = f" of {batch // parallel.readers} sequences for each process"
        found.append(
            f"a batch{each} does not divide into {microbatches} microbatches; choose another parallel.microbatches"
        )
    found += _tensor_problems(manifest, parallel)
    found += _stages_on_nodes_problems(manifest, site)
    return [*found, *_outer_worker_problems(manifest, site), *_uploads_problems(site)]


def _tensor_problems(manifest: Manifest, parallel: ParallelSection) -> Iterator[str]:
    """Whose layers several processes cannot compute together."""
    model, tensor = manifest.model, parallel.tensor
    text = f"parallel.tensor = {tensor}"
    if tensor == 1:
        return
    table = parse_config(model.config) if model.kind == "hf" else model.extra
    family = str(table["model_type"]) if model.kind == "hf" else model.kind
    instead = "set it to 1, and divide the model by parallel.shard and parallel.pipeline"
    if manifest.lora.rank:
        yield f"{text}, but the matrices of this run's adapter cannot be cut among processes; {instead}"
    if family not in TENSOR_FAMILIES:
        yield f"{text}, but layers of {family} cannot be cut, only those of {', '.join(TENSOR_FAMILIES)}; {instead}"
        return
    if biased := [name for name in ("attention_bias", "mlp_bias") if table.get(name)]:
        yield f"{text}, but the model has {biased[0]}, and such layers cannot be cut among processes; {instead}"
    for name in ("num_heads", "num_kv_heads", "intermediate_size"):
        if getattr(model, name) % tensor:
            yield f"{text} does not divide model.{name} = {getattr(model, name)}; choose a divisor"
    if -(-model.vocab_size // tensor) * (tensor - 1) >= model.vocab_size:
        yield f"{text} leaves a process without any token of model.vocab_size = {model.vocab_size}; choose a lower one"
    if parallel.sequence and model.seq_len % tensor:
        yield (
            f"parallel.sequence = true, but {text} does not divide model.seq_len = {model.seq_len}; choose a divisor,"
            " or set parallel.sequence to false"
        )


def _dtype_problems(manifest: Manifest, parallel: ParallelSection) -> Iterator[str]:
    inner = manifest.inner
    allowed = {inner.dtype, *inner.dtypes_allowed}
    dtype = parallel.dtype_of(inner.dtype)
    if dtype not in allowed:
        yield (
            f"parallel.dtype = {parallel.dtype!r}, but this run computes in {' or '.join(sorted(allowed))}"
            " (inner.dtypes_allowed); leave it empty"
        )
    if parallel.traffic != "float32" and dtype != parallel.traffic:
        yield (
            f"parallel.traffic = {parallel.traffic!r} loses what {dtype} keeps, in which this site computes; set it to"
            f" 'float32', or parallel.dtype to {parallel.traffic!r} where the run allows that"
        )


def _schedule_problems(parallel: ParallelSection, microbatches: int) -> list[str]:
    order = SliceOrder(parallel.schedule, parallel.pipeline, parallel.stages_per_process)
    split = split_backward_problem(
        parallel.schedule,
        is_checkpointed=parallel.activation_checkpointing == "block",
        is_compiled=parallel.compile,
        gathers_narrow=parallel.traffic == "bfloat16" and parallel.readers > 1,
    )
    return [problem for problem in (schedule_problem(order, microbatches), split) if problem]


def unwatched(manifest: Manifest, site: SiteConfig, num_losses: int | None = 0) -> str:
    """Why this site does not measure on held-out text what contributions do, a sentence; empty: it does, or may.

    `num_losses`: how many losses of batches a loop of the operator's own told; None: it was not asked yet.
    An operator must not rely on the alert harmful_contribution where nothing can raise it.
    """
    if not site.workers.without_one_every:
        return f"{_UNWATCHED} here: workers.without_one_every = 0"
    if not manifest.data.evaluate_every_rounds:
        return f"{_UNWATCHED} at any site: this run evaluates nothing (data.evaluate_every_rounds = 0)"
    if manifest.model.kind == "external" and num_losses is not None and num_losses < LOSSES_MIN:
        return (
            f"{_UNWATCHED} here until your own loop tells losses of several batches: let the `evaluate` of"
            " dilocoxd.Site return a list"
        )
    return ""


def _outer_worker_problems(manifest: Manifest, site: SiteConfig) -> Iterator[str]:
    strategy = manifest.strategy
    if site.workers.encode_device == "cuda" and (strategy.transform == "lowrank" or strategy.codec not in GPU_CODECS):
        what = "the factors of low rank" if strategy.transform == "lowrank" else f"the codec {strategy.codec}"
        yield (
            f"workers.encode_device = 'cuda', but {what} may come out otherwise on a GPU (only"
            f" {', '.join(GPU_CODECS)} without low rank do not); set it to 'cpu'"
        )
    here, away = site.workers.outer_parts, site.cluster.outer_parts
    if here + away > OUTER_PARTS_MAX:
        yield (
            f"workers.outer_parts = {here} and cluster.outer_parts = {away} are {here + away} parts, and a site may"
            f" have {OUTER_PARTS_MAX}; lower one of them"
        )


def _uploads_problems(site: SiteConfig) -> Iterator[str]:
    """What nodes that send payloads themselves need."""
    if site.network.data != "nodes":
        return
    if not site.cluster.outer_parts:
        yield (
            "network.data = 'nodes', but no outer part of this site runs on a node (cluster.outer_parts = 0); set"
            " network.data to 'head', or cluster.outer_parts to how many are to run on nodes"
        )
    if not site.network.data_connections:
        yield (
            "network.data = 'nodes', but nodes send by data connections alone and network.data_connections = 0 turns"
            " them off; set network.data to 'head', or raise network.data_connections"
        )


def _stages_on_nodes_problems(manifest: Manifest, site: SiteConfig) -> Iterator[str]:
    """What trainers on nodes cannot do."""
    stages, parallel = site.cluster.stages, site.parallel
    if not stages:
        return
    text = f"cluster.stages = {stages}"
    if stages >= parallel.pipeline:
        yield (
            f"{text} of parallel.pipeline = {parallel.pipeline}: the first stage trains on the head; raise"
            f" parallel.pipeline, or set cluster.stages to at most {parallel.pipeline - 1}"
        )
    if parallel.stages_per_process > 1:
        yield (
            f"{text} with parallel.schedule = {parallel.schedule!r}: each process has slices of the whole model"
            " there, and a node holds only neighbouring layers; use 1f1b"
        )
    if manifest.lora.rank:
        yield (
            f"{text}, but this run trains an adapter: the model under it would have to lie on every node, which is not"
            " supported; set cluster.stages to 0"
        )
    if site.cluster.host in ("0.0.0.0", "::"):
        yield (
            f"{text} with cluster.host = {site.cluster.host}: trainers on nodes need one address of this machine to"
            " meet at; give the one in the network that the nodes share"
        )
    if not site.cluster.is_public and _is_public(site.cluster.host):
        yield (
            f"{text} with cluster.host = {site.cluster.host}, an address of the internet: what trainers say to each"
            " other is neither encrypted nor does it prove who speaks; give one of a private network, or, if a firewall"
            " keeps strangers from all ports of head and nodes, set cluster.is_public to true"
        )


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def _own_loop_problems(site: SiteConfig) -> list[str]:
    """One process holds the whole module, and its loop alone says what a batch is."""
    plain = ParallelSection()
    away = (
        f"cluster.stages = {site.cluster.stages}, but the training loop of this run is a process of your own that holds"
        " the whole module (model.kind = 'external'); set it to 0"
    )
    return [away] * bool(site.cluster.stages) + [
        f"parallel.{name} = {getattr(site.parallel, name)!r}, but the training loop of this run is a process of your"
        f" own that holds the whole module (model.kind = 'external'); set it to {getattr(plain, name)!r} and cut the"
        " module in your loop"
        for name in _CUTS
        if getattr(site.parallel, name) != getattr(plain, name)
    ]


def sources_here(manifest: Manifest, site: SiteConfig) -> tuple[SourceSection, ...]:
    """The run's token stores that this site reads: all shared ones, and those of the private ones that it has.

    Raises ConfigError if it has none of these, or by their weights would never read one of them.
    """
    sources = manifest.data.sources
    private = [source.name for source in sources if source.private]
    if private and not any(name in site.paths.corpora for name in private):
        raise ConfigError(
            f"{'some' if manifest.data.has_leases else 'the'} token stores of this run are private"
            f" ({', '.join(private)}), and nothing says where this site has one of them: give --data NAME=PATH"
            " (paths.corpora.NAME in site.toml)"
        )
    own = [source for source in sources if source.private and source.name in site.paths.corpora]
    require_read(own)
    require_read([source for source in sources if not source.private])
    return tuple(source for source in sources if not source.private or source in own)


def store_path(source: SourceSection, site: SiteConfig) -> str:
    """Where this site has a token store of the run. Raises ConfigError if site.toml does not say."""
    path = site.paths.corpora.get(source.name)
    if path is None:
        raise ConfigError(
            f"the run trains on the token store {source.name!r} of {source.num_tokens:,} tokens, and nothing says where"
            f" this site has it: copy it from another site, and say where it is with --data {source.name}=PATH"
            f" (paths.corpora.{source.name} in site.toml)"
        )
    return path


def volumes_here(manifest: Manifest, site: SiteConfig) -> frozenset[int]:
    """The volumes of the run's shared token stores that this site has whole, and so can read.

    Nobody types them: index.json, whose hash run.toml names, says which files a volume is made of. Raises ConfigError
    if there is none, or if not all stores have the same one.
    """
    count = manifest.data.num_volumes
    if count == 1:
        return frozenset({0})
    found = {
        source.name: files_of(Path(store_path(source, site))).check(count)
        for source in manifest.data.sources
        if not source.private
    }
    here = frozenset.intersection(*found.values())
    if not here:
        each = "; ".join(f"{name} has {volume_list(volumes, count)}" for name, volumes in found.items())
        raise ConfigError(f"no volume is here of every token store of the run: {each}; copy one that others have")
    return here


def volume_list(volumes: Set[int], count: int) -> str:
    """Volumes for people, neighbours put together."""
    if len(volumes) == count:
        return f"all {count} volumes"
    numbers = sorted(volumes)
    firsts = [number for number in numbers if number - 1 not in volumes]
    lasts = [number for number in numbers if number + 1 not in volumes]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True)]
    return f"volume{'s' if len(volumes) > 1 else ''} {', '.join(spans)} of {count}"
