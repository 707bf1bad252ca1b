"""Token stores: text packed once into files of token ids that are mapped, not read (needs no torch).

`python -m dilocoxd.trainer.tokens` is what `dilocoxd data` runs.
"""

from dilocoxd.trainer.tokens.store import Part, TokenStore, open_store

__all__ = ["Part", "TokenStore", "open_store"]
