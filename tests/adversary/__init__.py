"""The adversary kit: attacks of the review replayed against real daemons, each also against one without its mend.

`make test-adversary` runs it. A new attack takes one or two files:

- `test_NAME.py`: starts honest sites (`tests.harness.running.run_directories`), attacks, and says what did not happen;
- `patches/NAME.py`, if a daemon has to lie: a module with `apply()`, which changes the daemon's code before it starts.
  `patched(site, "NAME", ...)` of `daemon.py` starts a site so. One of `holes/`, whose names have `hole_`, takes
  a mend away: the same attack must succeed on that daemon, or the test says nothing.

`stranger.py` is somebody without a daemon: a p2pd and an identity, who may send any bytes. `judge.py` looks at what an
attack did: processor time, answers of the API, rounds, equal chains, what stands in the logs.
"""
