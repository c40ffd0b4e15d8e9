#include "row_partition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace gearshift {
namespace {

constexpr double kFirstBuckets = 8, kGrowth = 1.5;
constexpr std::size_t kSlabBytes = 96 << 10;

uint32_t buckets_at(double level) { return static_cast<uint32_t>(kFirstBuckets * std::pow(kGrowth, level)); }

// A slab holds a power of two of rows, about 64 KB of them.
uint32_t slab_shift_for(std::size_t row_bytes) {
    uint32_t shift = 5;
    while (shift < 12 && (row_bytes << (shift + 1)) <= kSlabBytes) ++shift;
    return shift;
}

Bucket* new_buckets(RowMemory& memory, uint32_t count) {
    auto* buckets = reinterpret_cast<Bucket*>(memory.allocate(count * sizeof(Bucket)));
    for (uint32_t b = 0; b < count; ++b) new (buckets + b) Bucket{{kEmpty, kEmpty, kEmpty, kEmpty}, {}, {}};
    return buckets;
}

bool has_empty(const Bucket& bucket) {
    return bucket.id[0] == kEmpty || bucket.id[1] == kEmpty || bucket.id[2] == kEmpty || bucket.id[3] == kEmpty;
}

}  // namespace

void Partition::open(const RowLayout& layout, RowMemory& memory, uint32_t number) {
    memory_ = &memory;
    wide_stride_ = layout.wide_stride;
    side_stride_ = layout.side_stride;
    slab_shift_ = slab_shift_for(wide_stride_ + side_stride_);
    side_begin_ = std::size_t{wide_stride_} << slab_shift_;
    slab_bytes_ = side_begin_ + (std::size_t{side_stride_} << slab_shift_);
    phase_ = static_cast<double>(number) / kPartitions;
    const uint32_t count = buckets_at(phase_);
    buckets = new_buckets(memory, count);
    bucket_count = count;
}

Partition::~Partition() = default;  // the memory goes with RowMemory

uint32_t Partition::find(int64_t id, uint32_t home) const {
    const Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] == id) return all[b].row[s];
        if (has_empty(all[b])) return kNoRow;
    }
}

uint32_t Partition::insert(int64_t id, uint32_t home) {
    const uint32_t slots = bucket_count.load(std::memory_order_relaxed) * 4;
    if (uint64_t{live.load(std::memory_order_relaxed) + erased_ + 1} * 5 > uint64_t{slots} * 4) grow();
    const uint32_t row = new_row();
    Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1)
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] < 0) {
                erased_ -= all[b].id[s] == kErased;
                all[b].id[s] = id;
                all[b].row[s] = row;
                live.fetch_add(1, std::memory_order_relaxed);
                return row;
            }
}

bool Partition::erase(int64_t id, uint32_t home) {
    Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        const bool last = has_empty(all[b]);
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] == id) {
                save_before_write(id, all[b].row[s]);
                free_rows_.push_back(all[b].row[s]);
                all[b].id[s] = last ? kEmpty : kErased;  // a bucket that was never full sent nobody on
                erased_ += !last;
                live.fetch_sub(1, std::memory_order_relaxed);
                return true;
            }
        if (last) return false;
    }
}

void Partition::save_before_write(int64_t id, uint32_t row) {
    if (!cut || row >= cut->row_end || cut->is_saved(row)) return;
    const RowAt old = at(row);
    const std::size_t bytes = wide_stride_ + side_stride_, begin = cut->saved_ids.size() * bytes;
    cut->saved_rows.resize(begin + bytes);
    std::memcpy(cut->saved_rows.data() + begin, old.wide, wide_stride_);
    std::memcpy(cut->saved_rows.data() + begin + wide_stride_, old.side, side_stride_);
    cut->saved_ids.push_back(id);
    cut->mark(row);
}

uint32_t Partition::begin_cut() {
    std::lock_guard held(lock);
    auto fresh = std::make_unique<PartitionCut>();
    fresh->row_end = row_end;
    fresh->live = live.load(std::memory_order_relaxed);
    fresh->saved.resize(row_end / 64 + 1);
    cut = std::move(fresh);
    return cut->live;
}

std::unique_ptr<PartitionCut> Partition::end_cut() {
    std::lock_guard held(lock);
    return std::move(cut);
}

std::size_t Partition::overhead_bytes() const {
    std::size_t bytes = slabs_.capacity() * sizeof(std::byte*) + free_rows_.capacity() * sizeof(uint32_t);
    if (cut) bytes += cut->saved.capacity() * 8 + cut->saved_ids.capacity() * 8 + cut->saved_rows.capacity();
    return bytes;
}

uint32_t Partition::new_row() {
    if (!cut && !free_rows_.empty()) {
        const uint32_t row = free_rows_.back();
        free_rows_.pop_back();
        return row;
    }
    if (row_end >> slab_shift_ == slabs_.size()) {
        slabs_.reserve(slabs_.size() + 1 + slabs_.size() / 2);
        slabs_.push_back(memory_->allocate(slab_bytes_));
    }
    return row_end++;
}

// Old buckets are read, and new ones filled, from front to back. Where erased marks fill the index, its size stays.
void Partition::grow() {
    const uint32_t old_count = bucket_count.load(std::memory_order_relaxed);
    const int level = erased_ > live.load(std::memory_order_relaxed) / 4 ? level_ : level_ + 1;
    const uint32_t count = std::max(buckets_at(level + phase_), old_count + (level > level_ ? 1 : 0));
    Bucket* fresh = new_buckets(*memory_, count);
    each([&](int64_t id, uint32_t row) {
        const uint32_t home = home_of(mix(static_cast<uint64_t>(id)));
        place(fresh, count, static_cast<uint32_t>(uint64_t{home} * count >> 32), id, row);
    });
    Bucket* old = buckets.load(std::memory_order_relaxed);
    buckets.store(fresh, std::memory_order_relaxed);
    bucket_count.store(count, std::memory_order_relaxed);
    memory_->release(reinterpret_cast<std::byte*>(old), old_count * sizeof(Bucket));
    erased_ = 0;
    level_ = level;
}

void Partition::place(Bucket* buckets, uint32_t count, uint32_t bucket, int64_t id, uint32_t row) {
    for (uint32_t b = bucket;; b = b + 1 == count ? 0 : b + 1)
        for (int s = 0; s < 4; ++s)
            if (buckets[b].id[s] == kEmpty) {
                buckets[b].id[s] = id;
                buckets[b].row[s] = row;
                return;
            }
}

}  // namespace gearshift
