// The hot loops over one partition's ids, compiled once per instruction set (see row_kernels_body.h). Each is a pipeline:
// the bucket of an id is prefetched, then its row is found and prefetched, then copied or updated. Callers hold the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_layout.h"
#include "row_partition.h"
#include "row_step.h"

namespace gearshift {

struct Item {  // an id sorted by partition; stored here because fetching it again by position is a cache miss
    int64_t id;
    uint32_t position;  // in the caller's arrays
    uint32_t home;
};

struct PullCall {
    const RowLayout& layout;
    const SlabShape& shape;
    uint64_t seed;
    bool create;
    const uint16_t* tables_U;  // of the ids; null if unknown
    float* out_UW;
};

struct PushCall {
    const RowLayout& layout;
    const SlabShape& shape;
    uint64_t seed;
    std::vector<PartStep> parts;
    const float* sums_UW;
    const uint32_t* counts_U;
    const uint16_t* tables_U;  // null if unknown
    float scale;  // 1 / examples
    uint32_t step;
};

struct RowKernels {
    void (*pull)(const PullCall&, Partition&, const Item*, uint32_t count);
    void (*push)(const PushCall&, Partition&, const Item*, uint32_t count);
    // The first of n floats that, times scale, is not finite or cannot be squared; n if there is none.
    std::size_t (*first_bad)(const float*, std::size_t n, float scale);
};

extern const RowKernels kPortableKernels;
extern const RowKernels* const kAvx2Kernels;  // null if not built
const RowKernels& best_row_kernels();         // for this machine

inline void prefetch_bucket(const Partition& partition, uint32_t home) {
    __builtin_prefetch(partition.buckets.load(std::memory_order_relaxed) + partition.home_bucket(home));
}

}  // namespace gearshift
