"""The recorded first minutes keep what people are promised: something moves soon, training begins soon after the
text, and nothing is silent for long."""

from tests.documents.recording import COMMAND, DOCUMENT, Figures, lines_of, page

MOVES_S, STEP_S, SILENCE_S = 3.0, 20.0, 10.0


def test_recorded_start_moves_at_once_and_is_never_silent_for_ten_seconds() -> None:
    lines = lines_of(DOCUMENT.read_text(encoding="utf-8"))
    seen = Figures.of(lines)
    assert seen.moves <= MOVES_S and seen.step - seen.data <= STEP_S and seen.silence < SILENCE_S
    assert lines[-1][1].startswith("stopped; go on with: dilocoxd run "), "Ctrl-C says how to go on"
    assert not [line for _, line in lines if "Traceback" in line or "ERROR" in line]


def test_a_page_says_what_its_lines_say() -> None:
    lines = [(0.4, "text: reading"), (8.0, "text: 9 training and 1 held-out tokens in ~"), (12.0, "round 0  step 1/34")]
    made = page(lines, 3.2)
    assert lines_of(made) == lines and f"$ {' '.join(COMMAND)}\n" in made
    assert "after 0.4 s" in made and "shown 4.0 s later" in made and "silence is 7.6 s" in made
