"""Ids of a shard, as a site reads them."""

import numpy as np

from dilocoxd.trainer.tokens.store import ShardInfo, TokenStore


def ids_of(store: TokenStore, shard: ShardInfo, start: int, count: int) -> np.ndarray:
    """`count` of them from `start` on, int64 [count]."""
    return store.mapped(shard).rows(np.asarray([start]), count)[0]
