"""Types of values in messages. A mark describes each value, and `engine/wire` checks its size and range."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from gearshift.data.batch import Floats

STATISTICS = "running statistics of the model"
OPTIMIZER_STATE = "state of the dense optimizer, or parts of it"
WHOLE_OPTIMIZER_STATE = "state of the dense optimizer, all of it or none"
OPTIONAL_DENSE = "the dense values of a shard, all of them or none"
DENSE_GRADIENT = "the gradients of a shard's dense values, or their sum"
GRADIENT_VARIANCE = "the variance of the gradients in a sum, where the optimizer needs it"
PREDICTIONS = "predictions, which stay in the process of the worker"
GROUP_NUMBER = "the number of an all-reduce group, from 1"

Statistics = Annotated[dict[str, Tensor], STATISTICS]
OptimizerState = Annotated[dict[str, Tensor], OPTIMIZER_STATE]
WholeOptimizerState = Annotated[dict[str, Tensor], WHOLE_OPTIMIZER_STATE]
OptionalDense = Annotated[Tensor, OPTIONAL_DENSE]
DenseGradient = Annotated[Tensor, DENSE_GRADIENT]
GradientVariance = Annotated[Tensor | None, GRADIENT_VARIANCE]
Predictions = Annotated[Floats, PREDICTIONS]
GroupNumber = Annotated[int, GROUP_NUMBER]
