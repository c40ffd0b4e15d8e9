// What a row is made of, and where each of its floats lies.
//
// A row is cut into parts; each part has weights, moved by its own optimizer, and that optimizer's state. To the outside
// a row is W weights (the parts in order) and S state floats (the parts in order). In memory it is two records:
//   wide: weights of the wide parts, then their state. A stride of whole cache lines where that wastes little.
//   side: touches, last step, updates, and everything narrow: parts of fewer than 8 columns, one-per-row accumulators.
// So a width-1 linear term costs 4 bytes a float instead of a cache line, and lies in the line that a push must visit
// anyway; and a pull of a width-16 part reads exactly one line. Knows no id and no table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gearshift {

enum class OptimizerKind : uint32_t { sgd, momentum, adagrad, rowwise_adagrad, adam, ftrl };

struct PartSpec {
    OptimizerKind kind = OptimizerKind::sgd;
    uint32_t width = 0;
    double init = 0.0;  // born uniform in (-init, init)
    double lr = 0.0;
    double l1 = 0.0, l2 = 0.0;
    double eps = 0.0;
    double initial = 0.0;         // Adagrad: first value of the accumulator
    double beta1 = 0.0;           // Adam; Momentum's momentum
    double beta2 = 0.0;           // Adam
    double beta = 0.0;            // FTRL
    double clip = 0.0;            // CowClip's ratio; 0: gradients are not clipped
    double clip_zeta = 0.0;       // CowClip: smallest weight taken for a row's, per column
};

struct RowMeta {
    uint32_t touches, last_step, updates;
};

// A row's two records. Either may be absent (null) where a layout has no floats of that kind; `side` never is.
struct RowAt {
    std::byte* wide;
    std::byte* side;
    RowMeta& meta() const { return *reinterpret_cast<RowMeta*>(side); }
};

struct FloatsAt {
    bool in_side = false;
    uint32_t offset = 0;  // bytes into the record
    float* of(const RowAt& row) const {
        return reinterpret_cast<float*>((in_side ? row.side : row.wide) + offset);
    }
};

struct PartPlan {
    PartSpec spec;
    uint32_t column = 0;        // first weight column
    uint32_t state_column = 0;  // first state column
    uint32_t state_width = 0;
    FloatsAt weights, state;
};

struct RowLayout {
    explicit RowLayout(const std::vector<PartSpec>& specs);

    std::vector<PartPlan> parts;
    uint32_t width = 0, state_width = 0;
    uint32_t wide_stride = 0, side_stride = 0;  // bytes
    uint32_t wide_weight_bytes = 0;             // what a pull reads of the wide record: its first bytes
    bool narrow_weights = false;                // whether a pull must read the side record too
};

}  // namespace gearshift
