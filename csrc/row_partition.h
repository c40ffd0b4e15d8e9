// One of the table's 256 partitions: an index from id to row number, and the rows in slabs that never move.
//
// The index is open addressing over buckets of four 16-byte slots, one cache line each. A search ends at the first bucket
// with an empty slot. The home bucket is monotone in the hash, so growing is one pass in order over both indexes.
// Partitions grow by half, each at its own size (`phase`), so that only a few grow in any one call and the table's
// load factor stays even. All members are guarded by `lock`, except that buckets and bucket_count may be read without
// it to prefetch. Knows no optimizer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "row_layout.h"
#include "row_memory.h"

namespace gearshift {

constexpr uint32_t kPartitions = 256;
constexpr uint32_t kNoRow = 0xffffffff;
constexpr int64_t kEmpty = -1;   // ids are 0 or more
constexpr int64_t kErased = -2;  // a search goes on past it

// A bijection (MurmurHash3's finalizer): ids may be hashes already or small numbers. Partition = its top 8 bits, for ever:
// shard placement and checkpoint files follow it.
inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}
inline uint32_t partition_of(uint64_t mixed) { return static_cast<uint32_t>(mixed >> 56); }
inline uint32_t home_of(uint64_t mixed) { return static_cast<uint32_t>(mixed >> 24); }

struct alignas(64) Bucket {
    int64_t id[4];
    uint32_t row[4];
    uint32_t spare[4];  // kept for a row's place in a colder tier
};

// The rows of a partition as they were at the cut, kept until the scan has read them.
struct PartitionCut {
    uint32_t row_end = 0;                // rows born later have numbers from here on
    uint32_t live = 0;                   // rows in the cut
    std::vector<uint64_t> saved;         // one bit per row number
    std::vector<int64_t> saved_ids;
    std::vector<std::byte> saved_rows;   // wide record, side record; in the order of saved_ids

    bool is_saved(uint32_t row) const { return saved[row / 64] >> (row % 64) & 1; }
    void mark(uint32_t row) { saved[row / 64] |= uint64_t{1} << (row % 64); }
};

class alignas(64) Partition {
public:
    Partition() = default;
    ~Partition();
    void open(const RowLayout& layout, RowMemory& memory, uint32_t number);

    RowAt at(uint32_t row) const {
        std::byte* slab = slabs_[row >> slab_shift_];
        const uint32_t i = row & ((1u << slab_shift_) - 1);
        return {slab + std::size_t{i} * wide_stride_, slab + side_begin_ + std::size_t{i} * side_stride_};
    }
    uint32_t home_bucket(uint32_t home) const {
        return static_cast<uint32_t>(uint64_t{home} * bucket_count.load(std::memory_order_relaxed) >> 32);
    }
    uint32_t find(int64_t id, uint32_t home) const;
    uint32_t insert(int64_t id, uint32_t home);  // an id that is not there; the row's bytes are not set
    bool erase(int64_t id, uint32_t home);
    void save_before_write(int64_t id, uint32_t row);  // for the cut, if one needs this row
    uint32_t begin_cut();                              // takes the lock; rows in the cut
    std::unique_ptr<PartitionCut> end_cut();           // takes the lock; what was set aside
    std::size_t overhead_bytes() const;                // outside RowMemory

    template <class Visit>
    void each(Visit visit) const {  // (id, row)
        const Bucket* bucket = buckets.load(std::memory_order_relaxed);
        const Bucket* end = bucket + bucket_count.load(std::memory_order_relaxed);
        for (; bucket != end; ++bucket)
            for (int s = 0; s < 4; ++s)
                if (bucket->id[s] >= 0) visit(bucket->id[s], bucket->row[s]);
    }

    mutable std::mutex lock;
    std::atomic<Bucket*> buckets{nullptr};
    std::atomic<uint32_t> bucket_count{0};
    std::atomic<uint32_t> live{0};
    uint32_t row_end = 0;  // row numbers ever used
    std::unique_ptr<PartitionCut> cut;

private:
    uint32_t new_row();
    void grow();
    static void place(Bucket* buckets, uint32_t count, uint32_t bucket, int64_t id, uint32_t row);

    RowMemory* memory_ = nullptr;
    std::vector<std::byte*> slabs_;
    std::vector<uint32_t> free_rows_;  // of erased ids; not used again while a cut may need them
    std::size_t side_begin_ = 0, slab_bytes_ = 0;
    uint32_t wide_stride_ = 0, side_stride_ = 0, slab_shift_ = 0;
    uint32_t erased_ = 0;  // slots marked kErased
    double phase_ = 0;
    int level_ = 0;
};

}  // namespace gearshift
