// The row optimizers, one line each, and their settings. The enum, the names that Python uses, the size of the
// optimizer state and the switch over the formulas (row_optimizers.h) are generated from these lists.
#pragma once

// X(name, number of state floats for a part of `width` weights). A single float is stored next to the row's counts.
#define GEARSHIFT_ROW_OPTIMIZERS(X) \
    X(sgd, 0)                       \
    X(momentum, width)              \
    X(adagrad, width)               \
    X(rowwise_adagrad, 1)           \
    X(adam, 2 * width)              \
    X(ftrl, 2 * width)

// X(name): as in the dataclass of the optimizer in embedding/row_optimizers.py. A setting that is not given is 0.
// `initial` is the initial value of each state float; `clip` is CowClip's ratio (0: gradients are not clipped), and
// `clip_zeta` a lower bound, per column, of the weight norm that it uses.
#define GEARSHIFT_ROW_NUMBERS(X) \
    X(lr) X(l1) X(l2) X(eps) X(initial) X(momentum) X(beta1) X(beta2) X(beta) X(clip) X(clip_zeta)
