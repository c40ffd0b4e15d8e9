// The structure of a row, and the position of each of its floats.
//
// A row consists of parts; each part has weights, updated by its own optimizer, and that optimizer's state. Externally a
// row is W weights (the parts in order) and S state floats (the parts in order). In memory it is two records:
//   wide: weights of the wide parts, then their state. The stride is whole cache lines if that wastes little.
//   side: touches, last step, updates, and everything narrow: parts of fewer than 8 columns, one-per-row accumulators.
// A width-1 linear term therefore costs 4 bytes per float instead of a cache line, and lies in a line that a push must
// access anyway; and a pull of a width-16 part reads exactly one line. This file does not depend on ids or tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_optimizer_list.h"

namespace gearshift {

#define GEARSHIFT_KIND(name, state) name,
enum class OptimizerKind : uint32_t { GEARSHIFT_ROW_OPTIMIZERS(GEARSHIFT_KIND) };
#undef GEARSHIFT_KIND

struct PartSpec {
    OptimizerKind kind = OptimizerKind::sgd;
    uint32_t width = 0;
    double init = 0.0;  // initialised uniformly in (-init, init)
#define GEARSHIFT_NUMBER(name) double name = 0.0;
    GEARSHIFT_ROW_NUMBERS(GEARSHIFT_NUMBER)
#undef GEARSHIFT_NUMBER
};

// What a row knows of its past, and the table of its id: the number of a schema's table within its store, 0 if unknown.
// These 12 bytes are also in row files. `updates` saturates; Adam's corrections reach 1 long before that.
struct RowMeta {
    uint32_t touches, last_step;
    uint32_t updates : 22, table : 10;
};
static_assert(sizeof(RowMeta) == 12);

constexpr uint32_t kMostUpdates = (1u << 22) - 1, kMostTable = (1u << 10) - 1;

// The two records of a row. `wide` is null if a layout has no such floats; `side` never is.
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
    uint32_t wide_weight_bytes = 0;             // the first bytes of the wide record, which a pull reads
    bool narrow_weights = false;                // whether a pull must read the side record too
};

}  // namespace gearshift
