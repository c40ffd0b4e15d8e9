#include "row_partition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace gearshift {
namespace {

constexpr double kFirstBuckets = 8, kGrowth = 1.5;
// Small, to fit into the holes that outgrown indexes leave. Smaller still if rows have little memory.
constexpr std::size_t kSlabBytes = 16 << 10, kSmallSlabBytes = 4 << 10;
constexpr uint32_t kMostSlabRows = 2048, kFewestSlabRows = 16;  // the index of a row in its slab has 11 bits

uint32_t buckets_at(double level) { return static_cast<uint32_t>(kFirstBuckets * std::pow(kGrowth, level)); }

Bucket* new_buckets(RowMemory& memory, uint32_t count) {
    auto* buckets = reinterpret_cast<Bucket*>(memory.allocate(count * sizeof(Bucket)));
    for (uint32_t b = 0; b < count; ++b) new (buckets + b) Bucket{{kEmpty, kEmpty, kEmpty, kEmpty}, {}};
    return buckets;
}

bool has_empty(const Bucket& bucket) {
    return bucket.id[0] == kEmpty || bucket.id[1] == kEmpty || bucket.id[2] == kEmpty || bucket.id[3] == kEmpty;
}

void place_row(Bucket* buckets, uint32_t count, uint32_t bucket, int64_t id, uint64_t place) {
    for (uint32_t b = bucket;; b = b + 1 == count ? 0 : b + 1)
        for (int s = 0; s < 4; ++s)
            if (buckets[b].id[s] < 0) {
                buckets[b].id[s] = id;
                buckets[b].place[s] = place;
                return;
            }
}

}  // namespace

SlabShape::SlabShape(const RowLayout& layout, bool small) : wide_stride(layout.wide_stride), side_stride(layout.side_stride) {
    const auto fitting = static_cast<uint32_t>(((small ? kSmallSlabBytes : kSlabBytes) - kHead) / (wide_stride + side_stride));
    rows = std::clamp(fitting, kFewestSlabRows, kMostSlabRows);
    side_begin = kHead + std::size_t{wide_stride} * rows;
    bytes = side_begin + std::size_t{side_stride} * rows;
}

uint64_t Departures::watch() {
    watched_.push_back(next());
    return next();
}

// With several callers there may never be a moment without any, so the ids before the oldest of them are dropped.
void Departures::unwatch(uint64_t since) {
    watched_.erase(std::find(watched_.begin(), watched_.end(), since));
    const uint64_t oldest = watched_.empty() ? next() : *std::min_element(watched_.begin(), watched_.end());
    const std::size_t dropped = oldest - first_;
    if (dropped < ids_.size() / 2) return;
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(dropped));
    if (ids_.empty()) std::vector<int64_t>().swap(ids_);
    first_ = oldest;
}

void Departures::note(int64_t id) {
    if (!watched_.empty()) ids_.push_back(id);
}

void Partition::open(const SlabShape& shape, RowMemory& memory, uint32_t number) {
    shape_ = &shape;
    memory_ = &memory;
    phase_ = static_cast<double>(number) / kPartitions;
    const uint32_t count = buckets_at(phase_);
    buckets = new_buckets(memory, count);
    bucket_count = count;
}

uint64_t Partition::find(int64_t id, uint32_t home) const {
    const Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] == id) return all[b].place[s];
        if (has_empty(all[b])) return kNowhere;
    }
}

uint64_t* Partition::find_place(int64_t id, uint32_t home) {
    Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] == id) return &all[b].place[s];
        if (has_empty(all[b])) return nullptr;
    }
}

// Rows that come in the order of their hash would fill the front of an index that is still small, and every search would
// walk over them.
void Partition::reserve(uint32_t rows) {
    int level = level_;
    while (uint64_t{buckets_at(level + phase_)} * 4 * 2 < uint64_t{rows} * 3 + 3) ++level;
    if (level > level_) rebuild_index(level, buckets_at(level + phase_));
}

uint64_t Partition::insert(int64_t id, uint32_t home) {
    const uint32_t slots = bucket_count.load(std::memory_order_relaxed) * 4;
    const uint64_t used = uint64_t{live.load(std::memory_order_relaxed)} + erased_ + 1;
    if (used * 3 > uint64_t{slots} * 2) grow();  // above this, more searches would continue to a second line
    const uint64_t place = new_row() | birth_flags;
    Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1)
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] < 0) {
                erased_ -= all[b].id[s] == kErased;
                all[b].id[s] = id;
                all[b].place[s] = place;
                live.fetch_add(1, std::memory_order_relaxed);
                return place;
            }
}

bool Partition::erase(int64_t id, uint32_t home) {
    Bucket* all = buckets.load(std::memory_order_relaxed);
    const uint32_t count = bucket_count.load(std::memory_order_relaxed);
    for (uint32_t b = home_bucket(home);; b = b + 1 == count ? 0 : b + 1) {
        const bool last = has_empty(all[b]);
        for (int s = 0; s < 4; ++s)
            if (all[b].id[s] == id) return erase_in(all[b], s, last), true;
        if (last) return false;
    }
}

void Partition::erase_slot(uint32_t slot) {
    Bucket& bucket = buckets.load(std::memory_order_relaxed)[slot / 4];
    erase_in(bucket, static_cast<int>(slot % 4), has_empty(bucket));
}

void Partition::erase_in(Bucket& bucket, int slot, bool last) {
    leave_place(bucket.id[slot], bucket.place[slot]);
    bucket.id[slot] = last ? kEmpty : kErased;  // no search continued past a bucket that was never full
    erased_ += !last;
    live.fetch_sub(1, std::memory_order_relaxed);
}

void PartitionCut::save(uint32_t row, int64_t id, uint64_t place) {
    if (saved.size() == saved.capacity()) saved.reserve(saved.size() + saved.size() / 4 + 16);  // less is unused than by doubling
    saved.push_back({id, place & ~kRowFlags});
    mark(row);
}

void Partition::save_before_write(int64_t id, uint64_t place) {
    if (!cut_needs(place)) return;
    const uint64_t copy = new_row();
    copy_row(place, copy);
    cut->save(shape_->number(place), id, copy);
}

// A row that leaves needs no copy for the cut: its place is kept for it, unless the cold tier has the row as it is.
void Partition::leave_place(int64_t id, uint64_t place) {
    if (cut_needs(place)) {
        const uint32_t row = shape_->number(place);
        if (!is_on_disk(place)) return cut->save(row, id, place);
        cut->mark(row);
    }
    free_rows_.push_back(place & ~kRowFlags);
}

void Partition::copy_row(uint64_t from, uint64_t to) {
    const RowAt old = shape_->at(from), fresh = shape_->at(to);
    std::memcpy(fresh.wide, old.wide, shape_->wide_stride);
    std::memcpy(fresh.side, old.side, shape_->side_stride);
}

uint32_t Partition::begin_cut() {
    auto fresh = std::make_unique<PartitionCut>();
    fresh->row_end = row_end_;
    fresh->live = fresh->unread = live.load(std::memory_order_relaxed);
    fresh->done.resize(row_end_ / 64 + 1);
    for (uint64_t place : free_rows_) fresh->leave_out(shape_->number(place));  // rows that reuse them are not in the cut
    cut = std::move(fresh);
    return cut->live;
}

void Partition::end_cut(uint32_t rows) {
    std::lock_guard held(lock);
    const std::unique_ptr<PartitionCut> ended = std::move(cut);
    if (!ended || ended->saved.empty()) return;
    for (const PartitionCut::Saved& row : ended->saved) free_rows_.push_back(row.place);
    release_slabs(rows);
}

std::size_t Partition::overhead_bytes() const {
    std::size_t bytes = slabs_.capacity() * sizeof(std::byte*) + free_rows_.capacity() * sizeof(uint64_t) + departures.memory_bytes();
    if (cut) bytes += cut->done.capacity() * sizeof(uint64_t) + cut->saved.capacity() * sizeof(PartitionCut::Saved);
    return bytes;
}

// Rows in the last slabs move to free places in the first ones. Places are only kept in the index, so a row may move while
// the lock is held; a cut knows rows by their number, so nothing moves during one.
void Partition::release_slabs(uint32_t rows) {
    const uint32_t wanted = std::max(rows, live.load(std::memory_order_relaxed));
    const uint32_t keep = (wanted + shape_->rows - 1) / shape_->rows;
    if (cut || keep >= slabs_.size()) return;
    const uint32_t end = keep * shape_->rows;
    std::vector<uint64_t> holes;
    for (uint64_t place : free_rows_)
        if (shape_->number(place) < end) holes.push_back(place);
    Bucket* bucket = buckets.load(std::memory_order_relaxed);
    for (Bucket* last = bucket + bucket_count.load(std::memory_order_relaxed); bucket != last; ++bucket)
        for (int s = 0; s < 4; ++s) {
            uint64_t& place = bucket->place[s];
            if (bucket->id[s] < 0 || shape_->number(place) < end) continue;
            copy_row(place, holes.back());
            place = holes.back() | (place & kRowFlags);
            holes.pop_back();
        }
    for (std::size_t s = keep; s < slabs_.size(); ++s) memory_->release_pages(slabs_[s], shape_->bytes);
    slabs_.resize(keep);
    free_rows_ = std::move(holes);
    row_end_ = end;
    int level = level_;
    while (level > 0 && uint64_t{buckets_at(level - 1 + phase_)} * 4 * 2 > uint64_t{wanted} * 3 + 3) --level;
    if (level < level_) rebuild_index(level, buckets_at(level + phase_));
}

uint64_t Partition::new_row() {
    if (!free_rows_.empty()) {
        const uint64_t place = free_rows_.back();
        free_rows_.pop_back();
        return place;
    }
    const uint32_t slab = row_end_ / shape_->rows;
    if (slab == slabs_.size()) {
        if (slabs_.size() == slabs_.capacity()) slabs_.reserve(slab + 1 + slab / 2);
        slabs_.push_back(memory_->allocate(shape_->bytes));
        std::memcpy(slabs_.back(), &slab, sizeof slab);
    }
    const uint64_t index = row_end_++ % shape_->rows;
    return reinterpret_cast<uint64_t>(slabs_[slab]) | index << 48;
}

// Reads the old buckets and fills the new ones from front to back. If the index is full of erased marks, its size stays.
void Partition::grow() {
    const uint32_t old_count = bucket_count.load(std::memory_order_relaxed);
    const int level = erased_ > live.load(std::memory_order_relaxed) / 4 ? level_ : level_ + 1;
    rebuild_index(level, std::max(buckets_at(level + phase_), old_count + (level > level_ ? 1 : 0)));
}

void Partition::rebuild_index(int level, uint32_t count) {
    const uint32_t old_count = bucket_count.load(std::memory_order_relaxed);
    Bucket* fresh = new_buckets(*memory_, count);
    each([&](int64_t id, uint64_t place) {
        const uint32_t home = home_of(mix(static_cast<uint64_t>(id)));
        place_row(fresh, count, static_cast<uint32_t>(uint64_t{home} * count >> 32), id, place);
    });
    Bucket* old = buckets.load(std::memory_order_relaxed);
    buckets.store(fresh, std::memory_order_relaxed);
    bucket_count.store(count, std::memory_order_relaxed);
    memory_->release(reinterpret_cast<std::byte*>(old), old_count * sizeof(Bucket));
    erased_ = 0;
    level_ = level;
}

}  // namespace gearshift
