// The row optimizers, one line each, and their numbers. The enum, the names that Python uses, the floats of state of a row
// and the switch over the formulas (row_optimizers.h) are made from these lists.
#pragma once

// X(name, floats of state that a part of `width` weights needs). A single float lies beside the row's counts.
#define GEARSHIFT_ROW_OPTIMIZERS(X) \
    X(sgd, 0)                       \
    X(momentum, width)              \
    X(adagrad, width)               \
    X(rowwise_adagrad, 1)           \
    X(adam, 2 * width)              \
    X(ftrl, 2 * width)

// X(name): as in the dataclass of the optimizer in embedding/row_optimizers.py. A number that is not given is 0.
// `initial` is the first value of each float of state; `clip` is CowClip's ratio (0: gradients are not clipped), and
// `clip_zeta` the smallest weight taken for a row's, per column.
#define GEARSHIFT_ROW_NUMBERS(X) \
    X(lr) X(l1) X(l2) X(eps) X(initial) X(momentum) X(beta1) X(beta2) X(beta) X(clip) X(clip_zeta)
