"""A metric is declared once, and everything that shows metrics has it."""

import re

from gearshift.cli.evaluate import _print_slices
from gearshift.metrics import Measured, Measures
from gearshift.metrics.declaration import Metric, metric, metrics_of
from gearshift.metrics.measures import METRICS, SHOWN, SHOWN_NAMES
from gearshift.run.report import _score_text


class Counted:
    count = 3

    @metric("half", digits=1)
    def half(self) -> float:
        """Half of the count."""
        return self.count / 2

    @metric()
    def hidden(self) -> float:
        return 0.0


def measures() -> Measures:
    some = Measures()
    some.update([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    return some


def test_a_metric_is_a_value_on_an_object_and_a_declaration_on_the_class() -> None:
    assert Counted().half == 1.5
    assert isinstance(Counted.half, Metric) and Counted.half.__doc__ == "Half of the count."
    assert [(one.name, one.heading, one.digits) for one in metrics_of(Counted)] == [
        ("half", "half", 1),
        ("hidden", "", 4),
    ]


def test_reports_have_every_metric_and_sentences_those_with_a_heading() -> None:
    figures = measures().as_dict()
    assert [*figures] == [*(one.name for one in METRICS), "examples", "positives"]
    text = _score_text(figures)
    headings = re.findall(r"(?:^|  )([A-Za-z]+) ", text)
    assert headings == [one.heading for one in SHOWN]
    assert text == "AUC .8750 +- .2450  logloss .4389  NE .633  calibration 0.850"
    assert SHOWN_NAMES == ("auc", "auc_se", "logloss", "normalized_entropy", "calibration")


def test_a_report_from_before_a_metric_was_added_is_still_shown() -> None:
    figures = measures().as_dict()
    del figures["normalized_entropy"]
    assert "NE" not in _score_text(figures) and "calibration 0.850" in _score_text(figures)


def test_an_undefined_ratio_is_left_out_and_another_undefined_metric_is_a_dash() -> None:
    text = _score_text({**measures().as_dict(), "calibration": None, "logloss": None})
    assert "calibration" not in text and "logloss -" in text


def test_evaluate_has_a_column_for_each_of_them(capsys) -> None:  # type: ignore[no-untyped-def]
    _print_slices("country", [("all", Measured(measures(), None))])
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == ["country", "examples", "CTR", *(one.heading for one in SHOWN)]
    assert row.split()[-2:] == [".633", ".850"]
