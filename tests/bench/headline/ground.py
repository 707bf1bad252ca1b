"""What all ways of training share: the model, the batch, a step of fixed length, and links that make it hard.

A site is a network namespace behind a link shaped by tbf in both directions. Its rate is such that to sum fp32
gradients in a ring takes `ratio` times as long as an inner step.
"""

from dataclasses import dataclass

from tests.harness.running.network_namespaces import QUEUE_MS, Network

NAMES = "abcdefgh"
BURST_S = 0.01
BURST_BYTES_MIN = 16_000
"""Ten packets. What a bucket of more lets through at once would be a part of what is measured on links this thin."""
HEADERS = 1448 / 1514
"""What TCP, IP and Ethernet leave of a link's rate at a frame of 1514 bytes (tbf counts whole frames)."""
VALIDATION_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class Ground:
    """One cell: so many sites, so thin links."""

    num_sites: int
    ratio: float
    """Seconds of a ring's all-reduce of all gradients in fp32, over those of an inner step."""
    step_s: float
    """Length of an inner step at every site. It computes for a part of it and sleeps for the rest, so that sites do
    not fight for the cores of one machine."""
    hidden_size: int
    batch_sequences: int
    seq_len: int
    vocab_size: int = 512
    """More than the text has: parameters, hence rate of the links, for next to no computing. Links of 0.4 Mbit/s, as
    eight sites on few cores otherwise have at 357, carry more messages than payloads."""

    @property
    def names(self) -> str:
        return NAMES[: self.num_sites]

    @property
    def tokens_per_step(self) -> int:
        """Of all sites together."""
        return self.num_sites * self.batch_sequences * self.seq_len

    @property
    def goal(self) -> float:
        """Times the tokens per second of DDP: all steps back to back, but for three in a hundred."""
        return 0.97 * (self.ratio + 1)

    def bit_per_s(self, num_parameters: int) -> float:
        """Rate of each link, each way."""
        ring_bytes = 2 * (self.num_sites - 1) / self.num_sites * 4 * num_parameters
        return 8 * ring_bytes / (self.ratio * self.step_s) / HEADERS

    def settings(self) -> dict[str, object]:
        """Fields of the manifest, whatever the strategy."""
        return {
            "model.vocab_size": self.vocab_size,
            "model.hidden_size": self.hidden_size,
            "model.num_layers": 3,
            "model.num_heads": 4,
            "model.num_kv_heads": 4,
            "model.intermediate_size": 11 * self.hidden_size // 4,
            "model.seq_len": self.seq_len,
            "inner.batch_sequences": self.batch_sequences,
            "inner.microbatches": 1,
            "data.validation_sequences": VALIDATION_SEQUENCES,
            "strategy.segment_elements_max": 65536,
            "round.grace_min_s": 2.0,
            "round.grace_max_s": 60.0,
            "round.progress_timeout_s": 20.0,
        }


def shape(network: Network, names: str, bit_per_s: float) -> None:
    """Give the links of these sites this rate, each way."""
    burst = f"{max(BURST_BYTES_MIN, round(BURST_S * bit_per_s / 8))}b"
    rate = ("tbf", "rate", f"{round(bit_per_s)}bit", "burst", burst, "latency", f"{QUEUE_MS}ms")
    for name in names:
        network.inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", *rate)
        network.inside_hub("tc", "qdisc", "replace", "dev", f"p{name}", "root", *rate)
