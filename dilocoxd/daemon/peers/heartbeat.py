"""What we say of ourselves in every heartbeat: state, chain and speed."""

from collections.abc import Callable

from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.swarm.interface import SelfDescription


class Heartbeat:
    """Reads; each look is cheap."""

    def __init__(
        self, lifecycle: Lifecycle, ledger: Ledger, site: TrainingSite, tokens_per_step: Callable[[], int]
    ) -> None:
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._site = site
        self._tokens_per_step = tokens_per_step

    def describe(self) -> SelfDescription:
        """Now."""
        chain = self._ledger.chain
        site, state = self._site.status(), self._lifecycle.record_state
        step_s = site.step_seconds
        steps_per_s = 1.0 / step_s if step_s > 0 else 0.0
        return SelfDescription(
            # Nobody waits for a contribution of it, and others can count at how many sites it is so.
            state="halted" if state == "training" and site.is_spoiled else state,
            chain_head=chain.head,
            chain_height=chain.height,
            chain_weight=chain.weight,
            state_digest=chain.state_digest,
            contributed_round=self._ledger.own_rounds[-1] if self._ledger.own_rounds else -1,
            steps_per_s=steps_per_s,
            tokens_per_s=steps_per_s * self._tokens_per_step(),
        )
