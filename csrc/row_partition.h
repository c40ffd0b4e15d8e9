// One of the table's 256 partitions: an index from id to the place of its row, and the rows in slabs.
//
// The index uses open addressing over buckets of four 16-byte slots, one cache line each. A search stops at the first
// bucket with an empty slot. The home bucket is monotone in the hash, so growing is one ordered pass over both indexes.
// Partitions grow by half, each at a different size (`phase`), so only a few grow in any one call and the table's load
// factor stays even. All members are guarded by `lock`, except that buckets and bucket_count may be read without it for
// prefetching. It does not depend on optimizers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aligned_bytes.h"
#include "row_layout.h"
#include "row_memory.h"

namespace gearshift {

constexpr uint32_t kPartitions = 256;
constexpr uint64_t kNowhere = 0;  // not a valid place
constexpr int64_t kEmpty = -1;   // ids are 0 or more
constexpr int64_t kErased = -2;  // a search continues past it

// Flags of a row in a table with a cold tier, in the top bits of its place.
constexpr uint64_t kDirty = uint64_t{1} << 63;       // changed since it was written to the cold tier, or never written
constexpr uint64_t kStored = uint64_t{1} << 62;      // the cold tier has a record of it, maybe an old one
constexpr uint64_t kReferenced = uint64_t{1} << 61;  // pulled or fetched, and not pushed since
constexpr uint64_t kInChunk[2] = {uint64_t{1} << 60, uint64_t{1} << 59};  // needed by an even, by an odd chunk in sight
constexpr uint64_t kInChunks = kInChunk[0] | kInChunk[1];
constexpr bool is_on_disk(uint64_t place) { return (place & kStored) && !(place & kDirty); }  // as it is in memory
constexpr uint64_t kRowFlags = kDirty | kStored | kReferenced | kInChunks;

// What a call does to the flags of the rows that it works on.
struct Marks {
    uint64_t set = 0, clear = 0;
    uint64_t on(uint64_t place) const { return (place & ~clear) | set; }
};

// A bijection (MurmurHash3's finalizer), because ids may be hashes or small numbers. The partition is its top 8 bits. This
// must never change: shard placement and checkpoint files depend on it.
inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}
inline uint32_t partition_of(uint64_t mixed) { return static_cast<uint32_t>(mixed >> 56); }
inline uint64_t key_of(int64_t id) { return mix(static_cast<uint64_t>(id)); }
inline uint32_t home_of(uint64_t mixed) { return static_cast<uint32_t>(mixed >> 24); }

struct alignas(64) Bucket {
    int64_t id[4];
    uint64_t place[4];
};

// Rows are in slabs of one size: a short head, the wide records, the side records. The place of a row is the address of its
// slab with the row's index in the 11 bits above, so a lookup needs no table between slot and row.
struct SlabShape {
    SlabShape(const RowLayout& layout, bool small);
    RowAt at(uint64_t place) const {
        auto* slab = reinterpret_cast<std::byte*>(place & kAddress);
        const uint64_t i = index(place);
        return {slab + kHead + i * wide_stride, slab + side_begin + i * side_stride};
    }
    uint32_t number(uint64_t place) const {  // number of the row within its partition
        return *reinterpret_cast<const uint32_t*>(place & kAddress) * rows + index(place);
    }
    static uint32_t index(uint64_t place) { return static_cast<uint32_t>(place >> 48) & 0x7ff; }
    static constexpr uint64_t kAddress = (uint64_t{1} << 48) - 1;
    static constexpr uint32_t kHead = 64;  // holds the slab's number, and aligns the wide records to cache lines

    uint32_t wide_stride, side_stride, rows;
    std::size_t side_begin, bytes;
};

// The rows of a partition at the time of the cut, kept until the scan has read them. A saved row has a place in the slabs,
// as all rows have, but is not in the index.
struct PartitionCut {
    struct Saved {
        int64_t id;
        uint64_t place;
    };
    uint32_t row_end = 0;          // rows created later have numbers from here on
    uint32_t live = 0;             // rows in the cut
    uint32_t unread = 0;           // of these, neither read nor saved nor left to the cold tier
    std::vector<uint64_t> done;    // one bit per row number: the cut does not need what is there
    std::vector<Saved> saved;

    bool needs(uint32_t row) const { return row < row_end && !(done[row / 64] >> (row % 64) & 1); }
    void leave_out(uint32_t row) { done[row / 64] |= uint64_t{1} << (row % 64); }
    void mark(uint32_t row) { leave_out(row), --unread; }
    void save(uint32_t row, int64_t id, uint64_t place);
};

// The ids that have left a partition's memory since the beginning of the oldest call that is fetching rows of the
// partition. Each has a sequence number, from 0 on. Without such a call nothing is noted.
class Departures {
public:
    uint64_t watch();  // returns the sequence number of the next id
    void unwatch(uint64_t since);
    void note(int64_t id);
    uint64_t next() const { return first_ + ids_.size(); }
    std::span<const int64_t> since(uint64_t number) const { return std::span(ids_).subspan(number - first_); }
    std::size_t memory_bytes() const { return ids_.capacity() * sizeof(int64_t); }

private:
    std::vector<int64_t> ids_;
    std::vector<uint64_t> watched_;  // the sequence numbers at which the calls began
    uint64_t first_ = 0;             // the sequence number of ids_[0]
};

class alignas(64) Partition {
public:
    void open(const SlabShape& shape, RowMemory& memory, uint32_t number);

    uint32_t home_bucket(uint32_t home) const {
        return static_cast<uint32_t>(uint64_t{home} * bucket_count.load(std::memory_order_relaxed) >> 32);
    }
    uint64_t find(int64_t id, uint32_t home) const;  // kNowhere if it does not exist
    uint64_t* find_place(int64_t id, uint32_t home);  // in the index, valid until the next insert; null if it does not exist
    void reserve(uint32_t rows);  // of the index, before that many are inserted in the order of their hash
    uint64_t insert(int64_t id, uint32_t home);      // for an id that does not exist; the row's bytes are not set
    bool erase(int64_t id, uint32_t home);
    void erase_slot(uint32_t slot);                  // of the index: 4 * bucket + position
    void save_before_write(int64_t id, uint64_t place);  // for the cut, if it needs this row
    bool cut_needs(uint64_t place) const { return cut && cut->needs(shape_->number(place)); }
    uint32_t begin_cut();                                // returns the number of rows in the cut
    void end_cut(uint32_t rows);                         // takes the lock; slabs are released as `release_slabs` says
    std::size_t overhead_bytes() const;                  // outside RowMemory
    void release_slabs(uint32_t rows);                   // those not needed for this many rows, or for the live ones

    template <class Visit>
    void each_slot(Visit visit) {  // (slot, id, place); the place may be changed
        constexpr uint32_t kAhead = 4;
        Bucket* all = buckets.load(std::memory_order_relaxed);
        const uint32_t count = bucket_count.load(std::memory_order_relaxed);
        for (uint32_t b = 0; b < count; ++b) {
            if (b + kAhead < count)
                for (int s = 0; s < 4; ++s)
                    if (all[b + kAhead].id[s] >= 0) __builtin_prefetch(shape_->at(all[b + kAhead].place[s]).side);
            for (uint32_t s = 0; s < 4; ++s)
                if (all[b].id[s] >= 0) visit(4 * b + s, all[b].id[s], all[b].place[s]);
        }
    }

    template <class Visit>
    void each(Visit visit) const {  // (id, place)
        Bucket* bucket = buckets.load(std::memory_order_relaxed);
        const Bucket* end = bucket + bucket_count.load(std::memory_order_relaxed);
        for (; bucket != end; ++bucket)
            for (int s = 0; s < 4; ++s)
                if (bucket->id[s] >= 0) visit(bucket->id[s], bucket->place[s]);
    }

    // Accessed by every call: one cache line.
    mutable std::mutex lock;
    std::atomic<Bucket*> buckets{nullptr};
    std::atomic<uint32_t> bucket_count{0};
    std::atomic<uint32_t> live{0};
    std::unique_ptr<PartitionCut> cut;
    std::atomic<uint32_t> cold_only{0};  // rows that only the cold tier has
    uint64_t birth_flags = 0;            // of rows that are inserted
    Departures departures;

private:
    uint64_t new_row();
    void erase_in(Bucket& bucket, int slot, bool last);
    void leave_place(int64_t id, uint64_t place);
    void copy_row(uint64_t from, uint64_t to);
    void grow();
    void rebuild_index(int level, uint32_t buckets);

    const SlabShape* shape_ = nullptr;
    RowMemory* memory_ = nullptr;
    std::vector<std::byte*> slabs_;
    std::vector<uint64_t> free_rows_;  // row numbers of erased ids
    uint32_t row_end_ = 0;             // row numbers ever used
    uint32_t erased_ = 0;              // slots marked kErased
    double phase_ = 0;
    int level_ = 0;
};

}  // namespace gearshift
