// What bench_store.py measures the store against: a gather with known indices (the memory's own speed), and hash maps off
// the shelf, each used the plain way: find the id's row number, copy the row. Compiled by the benchmark; maps whose headers are
// absent are left out. C linkage, called through ctypes.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

#if __has_include(<tsl/robin_map.h>)
#include <tsl/robin_map.h>
#define HAVE_TSL 1
#endif
#if __has_include(<c10/util/flat_hash_map.h>)
#include <c10/util/flat_hash_map.h>
#define HAVE_SKA 1
#endif
#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
#include <boost/unordered/unordered_flat_map.hpp>
#define HAVE_BOOST 1
#endif
#if __has_include(<absl/container/flat_hash_map.h>) && defined(LINK_ABSL)
#include <absl/container/flat_hash_map.h>
#define HAVE_ABSL 1
#endif

namespace {

constexpr uint32_t kWidth = 16;

struct IdMap {
    virtual ~IdMap() = default;
    virtual void fill(const int64_t* ids, uint32_t n) = 0;
    virtual void pull(const int64_t* ids, uint32_t n, const float* rows, float* out) const = 0;
};

template <class Map>
struct MapOf : IdMap {
    Map map;
    void fill(const int64_t* ids, uint32_t n) override {
        map.reserve(n);
        for (uint32_t i = 0; i < n; ++i) map[ids[i]] = i;
    }
    void pull(const int64_t* ids, uint32_t n, const float* rows, float* out) const override {
        for (uint32_t i = 0; i < n; ++i) {
            const auto found = map.find(ids[i]);
            std::memcpy(out + std::size_t{i} * kWidth, rows + std::size_t{found->second} * kWidth, kWidth * sizeof(float));
        }
    }
};

}  // namespace

extern "C" {

float* new_rows(uint64_t rows) {  // on huge pages, like the store's
    const std::size_t huge = std::size_t{2} << 20, bytes = (rows * kWidth * sizeof(float) + huge - 1) / huge * huge;
    auto* memory = static_cast<float*>(std::aligned_alloc(huge, bytes));
    madvise(memory, bytes, MADV_HUGEPAGE);
    std::memset(memory, 1, bytes);
    return memory;
}

void free_rows(float* rows) { std::free(rows); }

void gather(const float* rows, const uint32_t* indices, uint32_t n, float* out) {
    constexpr uint32_t kAhead = 16;
    for (uint32_t i = 0; i < n; ++i) {
        if (i + kAhead < n) __builtin_prefetch(rows + std::size_t{indices[i + kAhead]} * kWidth);
        std::memcpy(out + std::size_t{i} * kWidth, rows + std::size_t{indices[i]} * kWidth, kWidth * sizeof(float));
    }
}

// Two dependent lines a row, as any index outside the rows needs: a line of the index names the row. No hashing of ids, no
// comparison, no lock: what the memory alone allows. `index` is `lines` rows of memory; what it names is a hash.
void fill_index(uint32_t* index, uint64_t lines, uint64_t rows) {
    for (uint64_t i = 0; i < lines * 16; ++i) index[i] = static_cast<uint32_t>((i * 0x9E3779B97F4A7C15ULL >> 32) * rows >> 32);
}

void gather_twice(const uint32_t* index, uint64_t lines, const float* rows, const uint32_t* indices, uint32_t n, float* out) {
    constexpr uint32_t kLinesAhead = 32, kRowsAhead = 16, kKept = 32;
    const auto slot = [&](uint32_t i) {
        const uint64_t hash = indices[i] * 0x9E3779B97F4A7C15ULL >> 32;
        return index + (hash * lines >> 32) * 16 + indices[i] % 16;
    };
    const float* found[kKept];
    for (uint32_t i = 0; i < n + kRowsAhead; ++i) {
        if (i + kLinesAhead - kRowsAhead < n) __builtin_prefetch(slot(i + kLinesAhead - kRowsAhead));
        if (i < n) __builtin_prefetch(found[i % kKept] = rows + std::size_t{*slot(i)} * kWidth);
        if (i >= kRowsAhead)
            std::memcpy(out + std::size_t{i - kRowsAhead} * kWidth, found[(i - kRowsAhead) % kKept], kWidth * sizeof(float));
    }
}

const char* map_names() {
    return "std::unordered_map"
#ifdef HAVE_TSL
           " tsl::robin_map"
#endif
#ifdef HAVE_SKA
           " ska::flat_hash_map"
#endif
#ifdef HAVE_BOOST
           " boost::unordered_flat_map"
#endif
#ifdef HAVE_ABSL
           " absl::flat_hash_map"
#endif
        ;
}

IdMap* new_map(const char* name) {
    if (!std::strcmp(name, "std::unordered_map")) return new MapOf<std::unordered_map<int64_t, uint32_t>>;
#ifdef HAVE_TSL
    if (!std::strcmp(name, "tsl::robin_map")) return new MapOf<tsl::robin_map<int64_t, uint32_t>>;
#endif
#ifdef HAVE_SKA
    if (!std::strcmp(name, "ska::flat_hash_map")) return new MapOf<ska::flat_hash_map<int64_t, uint32_t>>;
#endif
#ifdef HAVE_BOOST
    if (!std::strcmp(name, "boost::unordered_flat_map")) return new MapOf<boost::unordered_flat_map<int64_t, uint32_t>>;
#endif
#ifdef HAVE_ABSL
    if (!std::strcmp(name, "absl::flat_hash_map")) return new MapOf<absl::flat_hash_map<int64_t, uint32_t>>;
#endif
    return nullptr;
}

void fill_map(IdMap* map, const int64_t* ids, uint32_t n) { map->fill(ids, n); }
void pull_map(const IdMap* map, const int64_t* ids, uint32_t n, const float* rows, float* out) {
    map->pull(ids, n, rows, out);
}
void free_map(IdMap* map) { delete map; }
}
