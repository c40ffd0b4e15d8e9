"""Quality of predictions: AUC, grouped AUC, log loss, normalized entropy, calibration, standard errors.

    exact.py      functions on whole arrays
    measures.py   `Measures` takes one batch after another, in constant memory; declares the metrics
    declaration.py   how a metric is declared
    slices.py     the same, separately for each country or day
    collected.py  keeps the predictions of an evaluation, for exact metrics and the grouped AUC
    all_predictions.py  exact metrics from a single sort
    calibration.py  predicted and observed rate for each tenth of the examples
    score_tables.py  the metrics of an evaluation as attributes, text and tables
    warning_rules.py  warnings about suspicious values

It uses numpy, and pyarrow for tables of scores: no torch, no model, no run.

A label is 1 for a click and 0 otherwise; a label in between counts as both, in proportion. A metric that
is undefined (no examples, only one class, all weights zero, a score that is not a number) is nan.
"""

from gearshift.metrics.calibration import CalibrationRow as CalibrationRow
from gearshift.metrics.calibration import CalibrationTable as CalibrationTable
from gearshift.metrics.calibration import calibration_table as calibration_table
from gearshift.metrics.collected import Collected as Collected
from gearshift.metrics.collected import Measured as Measured
from gearshift.metrics.declaration import Metric as Metric
from gearshift.metrics.exact import AucDifference as AucDifference
from gearshift.metrics.exact import Grouped as Grouped
from gearshift.metrics.exact import auc as auc
from gearshift.metrics.exact import entropy as entropy
from gearshift.metrics.exact import grouped as grouped
from gearshift.metrics.exact import grouped_auc as grouped_auc
from gearshift.metrics.exact import logloss as logloss
from gearshift.metrics.exact import paired_auc_difference as paired_auc_difference
from gearshift.metrics.measures import AucHistogram as AucHistogram
from gearshift.metrics.measures import Measures as Measures
from gearshift.metrics.slices import Slices as Slices
from gearshift.metrics.slices import day_name as day_name
