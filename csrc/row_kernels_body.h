// The bodies of the hot loops, in the namespace GEARSHIFT_KERNELS of one instruction set. Included once each by
// row_kernels_portable.cpp and row_kernels_avx2.cpp; all results have the same bits.
#pragma once

#include "row_birth.h"
#include "row_kernels.h"
#include "row_optimizers.h"

namespace gearshift {
namespace GEARSHIFT_KERNELS {

constexpr uint32_t kPullChunk = 8, kPushChunk = 4;  // a push fetches more cache lines per row
constexpr uint32_t kBucketsAhead = 24;

GEARSHIFT_INLINE uint64_t find_row(const Partition& partition, int64_t id, uint32_t home) {
#ifdef GEARSHIFT_AVX2
    const Bucket* all = partition.buckets.load(std::memory_order_relaxed);
    const uint32_t count = partition.bucket_count.load(std::memory_order_relaxed);
    const __m256i wanted = _mm256_set1_epi64x(id), empty = _mm256_set1_epi64x(kEmpty);
    for (uint32_t b = partition.home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        const __m256i ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(all[b].id));
        const int hit = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(ids, wanted)));
        if (hit) return all[b].place[__builtin_ctz(hit)];
        if (!_mm256_testz_si256(_mm256_cmpeq_epi64(ids, empty), _mm256_set1_epi64x(-1))) return kNowhere;
    }
#else
    return partition.find(id, home);
#endif
}

template <bool Write>
GEARSHIFT_INLINE void prefetch_lines(const void* begin, uint32_t bytes) {
    const char* first = static_cast<const char*>(begin);
    for (uint32_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(first + offset, Write);
}

// As above, for bytes that may not start on a cache line boundary.
template <bool Write>
GEARSHIFT_INLINE void prefetch_bytes(const void* begin, uint32_t bytes) {
    prefetch_lines<Write>(begin, bytes);
    if (bytes > 4) __builtin_prefetch(static_cast<const char*>(begin) + bytes - 4, Write);
}

// Three chunks are in progress at a time: the buckets of one are being fetched; the rows of the next are located and being
// fetched (locate); the rows of the third are processed (arrive). It uses chunks rather than single ids because small
// loops keep their values in registers; spilled values would wait in the store queue behind the rows being written. The
// caller has prefetched the first kChunk buckets.
template <uint32_t kChunk, class Locate, class Arrive>
GEARSHIFT_INLINE void pipeline(const Partition& partition, const Item* items, uint32_t count, Locate locate,
                               Arrive arrive) {
    const auto fetch = [&](uint32_t begin) {
        const uint32_t end = begin + kChunk < count ? begin + kChunk : count;
        for (uint32_t j = begin; j < end; ++j) prefetch_bucket(partition, items[j].home);
    };
    const auto size = [&](uint32_t begin) { return begin >= count ? 0 : count - begin < kChunk ? count - begin : kChunk; };
    for (uint32_t begin = kChunk; begin < kBucketsAhead; begin += kChunk) fetch(begin);
    locate(items, size(0), 0);
    for (uint32_t begin = 0, turn = 0; begin < count; begin += kChunk, turn ^= 1) {
        fetch(begin + kBucketsAhead);
        locate(items + begin + kChunk, size(begin + kChunk), turn ^ 1);
        arrive(items + begin, size(begin), turn);
    }
}

template <class Call>
__attribute__((noinline)) uint64_t birth(const Call& call, Partition& partition, const Item& item) {
    const uint64_t place = partition.insert(item.id, item.home);
    const uint32_t table = call.tables_U ? call.tables_U[item.position] : 0;
    birth_row(call.layout, call.seed, item.id, table, call.shape.at(place));
    return place;
}

// ---- pull ----

GEARSHIFT_INLINE void copy_floats(float* to, const float* from, uint32_t width) {
    each_column(width, [&](uint32_t c, auto tag) { store(to + c, load<decltype(tag)>(from + c)); });
}

// Rows with a single wide part of W columns start on a cache line, or lie within one.
template <uint32_t W>
struct OnePart {
    using At = const float*;
    static constexpr uint32_t width(const RowLayout&) { return W; }
    static At locate(const PullCall& call, uint64_t place) {
        const auto* weights = reinterpret_cast<const float*>(call.shape.at(place).wide);
        for (uint32_t c = 0; c < W; c += 16) __builtin_prefetch(weights + c);
        return weights;
    }
    static void copy(const RowLayout&, At weights, float* out) { copy_floats(out, weights, W); }
    static bool born(At weights) { return weights != nullptr; }
};

struct AnyParts {
    using At = RowAt;
    static uint32_t width(const RowLayout& layout) { return layout.width; }
    static At locate(const PullCall& call, uint64_t place) {
        const RowAt row = call.shape.at(place);
        prefetch_bytes<false>(row.wide, call.layout.wide_weight_bytes);
        if (call.layout.narrow_weights) prefetch_bytes<false>(row.side, call.layout.side_stride);
        return row;
    }
    static void copy(const RowLayout& layout, const At& row, float* out) {
        for (const PartPlan& part : layout.parts) copy_floats(out + part.column, part.weights.of(row), part.spec.width);
    }
    static bool born(const At& row) { return row.side != nullptr; }
};

template <class Rows>
void pull_rows(const PullCall& call, Partition& partition, const Item* items, uint32_t count) {
    const RowLayout& layout = call.layout;
    const uint32_t width = Rows::width(layout);
    float* const out_UW = call.out_UW;
    const bool on_lines = width % 16 == 0 && reinterpret_cast<std::uintptr_t>(out_UW) % 64 == 0;
    typename Rows::At chunks[2][kPullChunk];
    const auto locate = [&](const Item* item, uint32_t n, uint32_t turn) {
        for (uint32_t j = 0; j < n; ++j) {
            const int64_t id = item[j].id;
            uint64_t place = find_row(partition, id, item[j].home);
            if (__builtin_expect(place == kNowhere, 0)) {
                chunks[turn][j] = {};
                if (!call.create) continue;
                place = birth(call, partition, item[j]);
            }
            chunks[turn][j] = Rows::locate(call, place);
            float* out = out_UW + std::size_t{item[j].position} * width;
            on_lines ? prefetch_lines<true>(out, width * 4) : prefetch_bytes<true>(out, width * 4);
        }
    };
    const auto arrive = [&](const Item* item, uint32_t n, uint32_t turn) {
        for (uint32_t j = 0; j < n; ++j) {
            float* out = out_UW + std::size_t{item[j].position} * width;
            if (__builtin_expect(Rows::born(chunks[turn][j]), 1))
                Rows::copy(layout, chunks[turn][j], out);
            else
                show_unborn(layout, call.seed, item[j].id, out);
        }
    };
    pipeline<kPullChunk>(partition, items, count, locate, arrive);
}

void pull(const PullCall& call, Partition& partition, const Item* items, uint32_t count) {
    const RowLayout& layout = call.layout;
    const bool one_wide = layout.parts.size() == 1 && !layout.narrow_weights;
    switch (one_wide ? layout.width : 0) {
        case 8: return pull_rows<OnePart<8>>(call, partition, items, count);
        case 16: return pull_rows<OnePart<16>>(call, partition, items, count);
        case 32: return pull_rows<OnePart<32>>(call, partition, items, count);
        default: return pull_rows<AnyParts>(call, partition, items, count);
    }
}

// ---- push ----

struct Located {  // the rows of one chunk
    RowAt at[kPushChunk];
    uint64_t place[kPushChunk];
};

GEARSHIFT_INLINE uint32_t saturating_add(uint32_t a, uint32_t b) { return a + b < a ? 0xffffffff : a + b; }

GEARSHIFT_INLINE uint32_t count_push(const PushCall& call, const Item& item, RowMeta& meta) {
    meta.touches = saturating_add(meta.touches, call.counts_U[item.position]);
    meta.last_step = call.step;
    if (__builtin_expect(meta.table == 0, 0) && call.tables_U) meta.table = call.tables_U[item.position];
    if (meta.updates < kMostUpdates) ++meta.updates;
    return meta.updates;
}

void push(const PushCall& call, Partition& partition, const Item* items, uint32_t count) {
    const RowLayout& layout = call.layout;
    const uint32_t width = layout.width, wide_bytes = layout.wide_stride, side_bytes = layout.side_stride;
    Located chunks[2];
    const auto locate = [&](const Item* item, uint32_t n, uint32_t turn) {
        for (uint32_t j = 0; j < n; ++j) {
            const int64_t id = item[j].id;
            uint64_t place = find_row(partition, id, item[j].home);
            if (__builtin_expect(place == kNowhere, 0)) place = birth(call, partition, item[j]);
            const RowAt at = call.shape.at(place);
            prefetch_lines<true>(at.wide, wide_bytes);
            if (wide_bytes % 64) __builtin_prefetch(at.wide + wide_bytes - 4, 1);
            prefetch_bytes<true>(at.side, side_bytes);
            prefetch_bytes<false>(call.sums_UW + std::size_t{item[j].position} * width, width * 4);
            chunks[turn].at[j] = at;
            chunks[turn].place[j] = place;
        }
    };
    const auto arrive = [&](const Item* item, uint32_t n, uint32_t turn) {
        const Located& chunk = chunks[turn];
        if (__builtin_expect(partition.cut != nullptr, 0))
            for (uint32_t j = 0; j < n; ++j) partition.save_before_write(item[j].id, chunk.place[j]);
        uint32_t updates[kPushChunk];
        for (uint32_t j = 0; j < n; ++j) updates[j] = count_push(call, item[j], chunk.at[j].meta());
        for (const PartStep& part : call.parts) step_part(part, call, {item, chunk.at, updates, n});
    };
    pipeline<kPushChunk>(partition, items, count, locate, arrive);
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
