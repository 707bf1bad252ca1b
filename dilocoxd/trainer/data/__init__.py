"""Text to batches: a corpus, a tokenizer trained on it, a token file, and the order in which a site reads it."""

from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.prepare import DataConfig, PreparedData, TokenizerConfig, default_cache_dir, prepare

__all__ = ["BatchOrder", "DataConfig", "PreparedData", "TokenizerConfig", "default_cache_dir", "prepare"]
