// The bodies of the hot loops, in the namespace GEARSHIFT_KERNELS of one instruction set. Included once by each of
// row_kernels_portable.cpp and row_kernels_avx2.cpp; all results have the same bits.
#pragma once

#include "row_birth.h"
#include "row_kernels.h"
#include "row_optimizers.h"

namespace gearshift {
namespace GEARSHIFT_KERNELS {

// How many ids ahead of the copy a row is fetched, and how many ids ahead of that its bucket.
constexpr uint32_t kRowsAhead = 12, kRing = 16, kBucketsAhead = 16;

GEARSHIFT_INLINE uint32_t find_row(const Partition& partition, int64_t id, uint32_t home) {
#ifdef __AVX2__
    const Bucket* all = partition.buckets.load(std::memory_order_relaxed);
    const uint32_t count = partition.bucket_count.load(std::memory_order_relaxed);
    const __m256i wanted = _mm256_set1_epi64x(id), empty = _mm256_set1_epi64x(kEmpty);
    for (uint32_t b = partition.home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        const __m256i ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(all[b].id));
        const int hit = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(ids, wanted)));
        if (hit) return all[b].row[__builtin_ctz(hit)];
        if (!_mm256_testz_si256(_mm256_cmpeq_epi64(ids, empty), _mm256_set1_epi64x(-1))) return kNoRow;
    }
#else
    return partition.find(id, home);
#endif
}

template <bool Write>
GEARSHIFT_INLINE void prefetch_bytes(const void* begin, uint32_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(begin);
    for (uintptr_t line = address & ~uintptr_t{63}; line < address + bytes; line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(line), Write);
}

GEARSHIFT_INLINE void copy_floats(float* to, const float* from, uint32_t width) {
    each_column(width, [&](uint32_t c, auto tag) { store(to + c, load<decltype(tag)>(from + c)); });
}

// Runs the pipeline: locate(j) finds row j and starts fetching it; arrive(j) works on it kRowsAhead ids later.
template <class Locate, class Arrive>
GEARSHIFT_INLINE void pipeline(const Partition& partition, const Item* items, uint32_t count, Locate locate,
                               Arrive arrive) {
    for (uint32_t j = 0; j < count + kRowsAhead; ++j) {
        if (j + kBucketsAhead < count) prefetch_bucket(partition, items[j + kBucketsAhead].home);
        if (j < count) locate(j);
        if (j >= kRowsAhead) arrive(j - kRowsAhead);
    }
}

inline uint32_t find_or_birth(const RowLayout& layout, uint64_t seed, Partition& partition, const Item& item) {
    uint32_t row = find_row(partition, item.id, item.home);
    if (__builtin_expect(row == kNoRow, 0)) {
        row = partition.insert(item.id, item.home);
        birth_row(layout, seed, item.id, partition.at(row));
    }
    return row;
}

GEARSHIFT_INLINE void copy_row(const RowLayout& layout, const RowAt& row, float* out) {
    for (const PartPlan& part : layout.parts) copy_floats(out + part.column, part.weights.of(row), part.spec.width);
}

inline void show_unborn(const RowLayout& layout, uint64_t seed, int64_t id, float* out) {
    const uint64_t row_hash = birth_hash(seed, id);
    for (const PartPlan& part : layout.parts) birth_weights(part, row_hash, out + part.column);
}

void pull(const PullCall& call, Partition& partition, const Item* items, uint32_t count) {
    const RowLayout& layout = call.layout;
    RowAt ring[kRing];
    const auto locate = [&](uint32_t j) {
        const uint32_t row = call.create ? find_or_birth(layout, call.seed, partition, items[j])
                                         : find_row(partition, items[j].id, items[j].home);
        const RowAt at = row == kNoRow ? RowAt{nullptr, nullptr} : partition.at(row);
        prefetch_bytes<false>(at.wide, layout.wide_weight_bytes);
        if (layout.narrow_weights) prefetch_bytes<false>(at.side, layout.side_stride);
        ring[j % kRing] = at;
    };
    const auto arrive = [&](uint32_t j) {
        const RowAt& at = ring[j % kRing];
        float* out = call.out_UW + std::size_t{items[j].position} * layout.width;
        if (__builtin_expect(at.side == nullptr, 0)) return show_unborn(layout, call.seed, items[j].id, out);
        copy_row(layout, at, out);
    };
    pipeline(partition, items, count, locate, arrive);
}

GEARSHIFT_INLINE uint32_t saturating_add(uint32_t a, uint32_t b) { return a + b < a ? 0xffffffff : a + b; }

void push(const PushCall& call, Partition& partition, const Item* items, uint32_t count) {
    const RowLayout& layout = call.layout;
    RowAt ring[kRing];
    uint32_t rows[kRing];
    const bool cut = partition.cut != nullptr;
    const auto locate = [&](uint32_t j) {
        const uint32_t row = find_or_birth(layout, call.seed, partition, items[j]);
        const RowAt at = partition.at(row);
        prefetch_bytes<true>(at.wide, layout.wide_stride);
        prefetch_bytes<true>(at.side, layout.side_stride);
        prefetch_bytes<false>(call.sums_UW + std::size_t{items[j].position} * layout.width, layout.width * 4);
        ring[j % kRing] = at;
        rows[j % kRing] = row;
    };
    const auto arrive = [&](uint32_t j) {
        const Item& item = items[j];
        const RowAt& at = ring[j % kRing];
        if (__builtin_expect(cut, 0)) partition.save_before_write(item.id, rows[j % kRing]);
        RowMeta& meta = at.meta();
        meta.touches = saturating_add(meta.touches, call.counts_U[item.position]);
        meta.last_step = call.step;
        meta.updates = saturating_add(meta.updates, 1);
        const float* sums = call.sums_UW + std::size_t{item.position} * layout.width;
        for (const PartStep& part : call.parts) step_part(part, at, sums, call.scale, meta.updates);
    };
    pipeline(partition, items, count, locate, arrive);
}

// x * 0 is 0 for every finite x and NaN for others, so a block is clean iff its sum of (g * g) * 0 is 0.
std::size_t first_bad(const float* values, std::size_t n, float scale) {
    constexpr std::size_t kBlock = 256;
    const auto test = [scale](float x) { return (x * scale) * (x * scale) * 0.0f == 0.0f; };
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        const std::size_t end = begin + kBlock < n ? begin + kBlock : n;
        Eight sum = {};
        std::size_t i = begin;
        for (; i + 8 <= end; i += 8) {
            const Eight g = load<Eight>(values + i) * scale;
            sum += g * g * 0.0f;
        }
        bool clean = true;
        for (int l = 0; l < 8; ++l) clean &= sum[l] == 0.0f;
        for (; i < end; ++i) clean &= test(values[i]);
        if (clean) continue;
        for (i = begin; i < end; ++i)
            if (!test(values[i])) return i;
    }
    return n;
}

}  // namespace GEARSHIFT_KERNELS
}  // namespace gearshift
