"""Text to batches: a corpus, a tokenizer trained on it, a token file, and the order in which a site reads it.

Preparing needs no torch; `order` does, and is imported by its own name.
"""

from dilocoxd.trainer.data.prepare import DataConfig, PreparedData, TokenizerConfig, prepare

__all__ = ["DataConfig", "PreparedData", "TokenizerConfig", "prepare"]
