from pathlib import Path

import pytest

from benchmarks.simulated.arena import cases, page
from simulator.arena import Outcome, Score
from simulator.autoscalers.choices import choose
from simulator.tuning import Tournament, Tuned


def tournament(held: float) -> Tournament:
    choices = choose("sojourn,peak")
    families = []
    for choice, cost in zip(choices, (1.1, 1.4), strict=True):
        outcome = Outcome(choice.name, choice.label, "", held, cost, None, 6.0)
        score = Score(outcome, held, (held - 0.01, held), cost, 1.2 * cost, 1.01)
        families.append(Tuned(choice.name, choice, (choice,), score, ((score,),), 1))
    return Tournament("a", ("x, day 2 (0+60 s)",), tuple(families), (0.8,))


CASE = cases.Case(cases.SYNTHETIC, True, 60, 0)


def test_seeds_are_summed_up_and_the_cheapest_is_first() -> None:
    text = page.tables([(CASE, tournament(0.98)), (CASE, tournament(1.0))])
    assert "**Synthetic, superposed, 60 s to start, day 2** (bound: 0.80; 2 seeds)" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows[0] == "| Sojourn | **99.0%** [97.0%, 100%] | 1.10 | 1.32 | 1.01 | 6 |"
    assert rows[1].startswith("| Peak of the minute |")
    assert "As published, not tuned: Sojourn 99.0% at 1.10, Peak of the minute" in text
    assert "Nothing lies beyond" in text
    assert "Not run yet" not in text
    assert "![" not in text


def test_cases_that_were_not_run_are_named() -> None:
    text = page.tables([], missing=[CASE, CASE])
    assert text == "Not run yet: synthetic, superposed, 60 s to start (seed 0).\n"


def test_a_plot_follows_its_tables() -> None:
    plots = {CASE.name: Path("docs/images/a.png")}
    assert f"![{CASE.name}](images/a.png)" in page.tables([(CASE, tournament(1.0))], plots)


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.insert(path, "new")
    page.insert(path, "newer")
    assert path.read_text() == f"before\n{page.BEGIN}\n\nnewer\n\n{page.END}\nafter\n"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="has no"):
        page.insert(path, "new")


@pytest.mark.slow
def test_a_curve_that_misses_nothing_can_be_drawn(tmp_path: Path) -> None:
    assert page.draw(CASE, tournament(1.0), tmp_path).read_bytes().startswith(b"\x89PNG")
