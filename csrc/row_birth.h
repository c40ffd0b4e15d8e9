// The initial values of a row: a function of (seed, id, column) only, in integer arithmetic up to one exact conversion and
// one IEEE multiplication, so the bits are the same on every machine, shard and engine, in any order.
#pragma once

#include <cstring>

#include "row_partition.h"

namespace gearshift {

// Odd integers between -2^23 and 2^23, times init / 2^23: uniform in (-init, init), symmetric, never 0.
inline float birth_value(uint64_t row_hash, uint32_t column, float unit) {
    const auto bits = static_cast<int32_t>(mix(row_hash + (column + 1) * 0x9e3779b97f4a7c15ULL) >> 41);
    return static_cast<float>(2 * bits + 1 - (1 << 23)) * unit;
}

inline uint64_t birth_hash(uint64_t seed, int64_t id) {
    return mix(mix(seed + 0x632be59bd9b4e019ULL) ^ static_cast<uint64_t>(id));
}

inline void birth_weights(const PartPlan& part, uint64_t row_hash, float* weights) {
    if (part.spec.kind == OptimizerKind::ftrl) {  // its weights follow from its state, which is 0
        std::memset(weights, 0, part.spec.width * sizeof(float));
        return;
    }
    const float unit = static_cast<float>(part.spec.init) / static_cast<float>(1 << 23);
    for (uint32_t c = 0; c < part.spec.width; ++c) weights[c] = birth_value(row_hash, part.column + c, unit);
}

// The weights that a row would start with.
__attribute__((noinline)) inline void show_unborn(const RowLayout& layout, uint64_t seed, int64_t id, float* out) {
    const uint64_t row_hash = birth_hash(seed, id);
    for (const PartPlan& part : layout.parts) birth_weights(part, row_hash, out + part.column);
}

inline void birth_row(const RowLayout& layout, uint64_t seed, int64_t id, uint32_t table, const RowAt& row) {
    const uint64_t row_hash = birth_hash(seed, id);
    row.meta() = {0, 0, 0, table};
    for (const PartPlan& part : layout.parts) {
        birth_weights(part, row_hash, part.weights.of(row));
        float* state = part.state.of(row);
        for (uint32_t c = 0; c < part.state_width; ++c) state[c] = static_cast<float>(part.spec.initial);
    }
}

}  // namespace gearshift
