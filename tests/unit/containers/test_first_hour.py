"""What the walk by the README types: that it is there, and how long it takes two hands."""

from tests.containers.first_hour import LINK, commands, typing_s


def test_the_readme_shows_an_installation_a_start_and_a_join() -> None:
    told = commands()
    assert told.install == ("python3 -m venv dilocoxd-env && . dilocoxd-env/bin/activate", "pip install dilocoxd")
    assert told.start == "dilocoxd start small --announce 203.0.113.7"
    assert told.join.startswith("dilocoxd join /ip4/203.0.113.7/tcp/31337/p2p/")


def test_only_a_whole_line_is_a_link() -> None:
    line = "  dilocoxd join /ip4/203.0.113.7/tcp/31337/p2p/QmA/run/6b1f/key/aumLF"
    assert LINK.search(line) is None
    found = LINK.search(f"another machine joins with:\n{line}\n")
    assert found is not None and found[1] == line.strip()


def test_forty_words_a_minute() -> None:
    assert typing_s(200) == 60
