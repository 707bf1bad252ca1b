"""libp2p's daemon and the DHT: the only folder that knows hivemind."""
