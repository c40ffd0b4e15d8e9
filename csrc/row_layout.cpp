#include "row_layout.h"

#include <stdexcept>

namespace gearshift {
namespace {

constexpr uint32_t kLine = 64;
constexpr uint32_t kNarrow = 8;  // parts with fewer columns are stored next to the row's counts

uint32_t state_floats(const PartSpec& spec) {
    const uint32_t width = spec.width;
    switch (spec.kind) {
#define GEARSHIFT_STATE(name, state) \
    case OptimizerKind::name: return state;
        GEARSHIFT_ROW_OPTIMIZERS(GEARSHIFT_STATE)
#undef GEARSHIFT_STATE
    }
    throw std::invalid_argument("unknown row optimizer");
}

uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

// Whole cache lines if they cost at most an eighth more; otherwise 16-byte steps, and some rows straddle two lines.
uint32_t wide_stride_of(uint32_t bytes) {
    const uint32_t lines = round_up(bytes, kLine);
    return lines - bytes <= bytes / 8 ? lines : round_up(bytes, 16);
}

FloatsAt take(uint32_t& end, uint32_t floats, bool in_side) {
    const FloatsAt at{in_side, end};
    end += floats * sizeof(float);
    return at;
}

}  // namespace

RowLayout::RowLayout(const std::vector<PartSpec>& specs) {
    if (specs.empty()) throw std::invalid_argument("a row needs at least one part");
    uint32_t wide_end = 0, side_end = sizeof(RowMeta);
    for (const PartSpec& spec : specs) {
        if (spec.width == 0 || spec.width > 4096) throw std::invalid_argument("a part's width must be 1 to 4096");
        PartPlan plan{spec, width, state_width, state_floats(spec), {}, {}};
        const bool narrow = spec.width < kNarrow;
        plan.weights = take(narrow ? side_end : wide_end, spec.width, narrow);
        narrow_weights |= narrow;
        width += spec.width;
        state_width += plan.state_width;
        parts.push_back(plan);
    }
    wide_weight_bytes = wide_end;
    for (PartPlan& plan : parts) {
        const bool in_side = plan.weights.in_side || plan.state_width == 1;
        plan.state = take(in_side ? side_end : wide_end, plan.state_width, in_side);
    }
    wide_stride = wide_stride_of(wide_end);
    side_stride = side_end;
}

}  // namespace gearshift
