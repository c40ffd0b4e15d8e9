// How the table uses its cold tier: rows that are not in memory are loaded before they are used, and the least used
// rows are evicted when a partition has too many.
//
// A call first splits its ids, under each partition's lock, into rows in memory, which it processes at once, and
// missing rows, which it fetches from disk without any lock. Then, under the lock again, each fetched row is inserted
// unless its row has become resident in the meantime, and it is processed in the same critical section. So no row needs
// to be pinned.
//
// Why a late fetch cannot overwrite a newer update: while the row is resident, the fetched record is ignored. If the
// row was loaded, changed and evicted again, its departure was counted (`Partition::departures`); the caller recorded
// the count before it fetched, sees that it changed, and fetches again. After a few such retries it keeps the lock
// during the fetch.
//
// A row in memory takes precedence over its record on disk. A row that is evicted unchanged is not written again.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "feature_hash.h"
#include "row_table.h"

namespace gearshift {
namespace {

constexpr int kOptimisticTries = 3;
constexpr std::size_t kIndexBytesPerRow = 36;  // 16-byte slots, at least 4/9 full
constexpr std::size_t kBufferShare = 8;        // of the budget, for rows that are about to be written
constexpr std::size_t kMostBufferBytes = std::size_t{256} << 20;
constexpr uint32_t kLookAhead = 16;
constexpr uint32_t kPieceShare = 8, kFewestInserted = 32;

// Number of rows loaded into a partition before others are evicted.
uint32_t piece_rows(uint32_t quota) { return std::max(quota / kPieceShare, std::min(kFewestInserted, quota)); }

}  // namespace

std::size_t RowTable::add_cold_tier(std::string folder, std::size_t budget_bytes, std::size_t hot_rows) {
    if (cold_ || size()) throw std::invalid_argument("a cold tier is added once, to an empty table");
    const std::size_t buffers = std::min(budget_bytes / kBufferShare, kMostBufferBytes);
    hot_bytes_ = budget_bytes - buffers;
    fixed_quota_ = static_cast<uint32_t>((hot_rows + kPartitions - 1) / kPartitions);
    const RowFileShape shape(layout_.width, layout_.state_width, layout_hash());
    cold_ = std::make_unique<ColdTier>(std::move(folder), shape, buffers);
    for (Partition& partition : partitions_) partition.birth_flags = kDirty | kReferenced;
    return std::size_t{quota()} * kPartitions;
}

uint64_t RowTable::layout_hash() const {
    std::vector<uint32_t> facts;
    for (const PartPlan& part : layout_.parts) {
        facts.push_back(static_cast<uint32_t>(part.spec.kind));
        facts.push_back(part.spec.width);
        facts.push_back(part.state_width);
    }
    return xxh64(reinterpret_cast<const char*>(facts.data()), facts.size() * sizeof(uint32_t), 0);
}

uint32_t RowTable::quota() const {
    if (fixed_quota_) return fixed_quota_;
    const std::size_t row = shape_.wide_stride + shape_.side_stride + kIndexBytesPerRow;
    const std::size_t taken = cold_->index_bytes() + kPartitions * shape_.bytes;  // a partition's last slab is not full
    const std::size_t fitting = (hot_bytes_ > taken ? hot_bytes_ - taken : 0) / row / kPartitions;
    const std::size_t piece = std::max<std::size_t>(fitting / (kPieceShare + 1), std::min<std::size_t>(kFewestInserted, fitting / 2));
    const std::size_t rows = fitting - piece;
    return static_cast<uint32_t>(std::clamp<std::size_t>(rows, 1, uint32_t{1} << 30));
}

std::size_t RowTable::each_resident_group(std::span<const int64_t> ids, uint32_t threads, uint64_t flags, const GroupWork& work) {
    if (!cold_) return each_group(ids, threads, work), 0;
    std::vector<Item> missing;
    each_split_group(ids, threads, flags, missing, work);
    const std::size_t misses = missing.size();
    for (int tries = 0; !missing.empty(); ++tries)
        missing = bring_in(std::move(missing), flags, tries >= kOptimisticTries, work);
    return misses;
}

// Processes the rows in memory and sets their flags; the other ids are added to `missing`.
void RowTable::each_split_group(std::span<const int64_t> ids, uint32_t threads, uint64_t flags, std::vector<Item>& missing,
                                const GroupWork& work) {
    std::mutex missing_lock;
    each_group(ids, threads, [&](Partition& partition, Item* items, uint32_t n) {
        std::vector<Item> absent;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; ++i) {
            if (i + kLookAhead < n) prefetch_bucket(partition, items[i + kLookAhead].home);
            if (uint64_t* place = partition.find_place(items[i].id, items[i].home)) {
                *place |= flags;
                items[kept++] = items[i];
            } else {
                absent.push_back(items[i]);
            }
        }
        if (kept) work(partition, items, kept);
        if (absent.empty()) return;
        std::lock_guard held(missing_lock);
        missing.insert(missing.end(), absent.begin(), absent.end());
    });
}

FetchedRows RowTable::fetch(std::span<const Item> items) {
    FetchedRows rows{cold_->shape().record_bytes, {}, {}};
    rows.records.resize(items.size() * rows.record_bytes);
    rows.found.resize(items.size());
    std::vector<int64_t> ids(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) ids[i] = items[i].id;
    cold_->fetch(ids, rows.records.data(), rows.found.data());
    return rows;
}

// Returns the ids that must be retried, because rows of their partition were evicted in the meantime.
std::vector<Item> RowTable::bring_in(std::vector<Item>&& missing, uint64_t flags, bool hold_locks, const GroupWork& work) {
    const auto partition_at = [&](std::size_t i) { return partition_of(mix(static_cast<uint64_t>(missing[i].id))); };
    std::stable_sort(missing.begin(), missing.end(), [](const Item& a, const Item& b) {
        return mix(static_cast<uint64_t>(a.id)) < mix(static_cast<uint64_t>(b.id));
    });
    struct Range {
        Partition* partition;
        std::size_t begin, end;
        uint64_t departures;
    };
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < missing.size(); ++i)
        if (i == 0 || partition_at(i) != partition_at(i - 1))
            ranges.push_back({&partitions_[partition_at(i)], i, i + 1, 0});
        else
            ranges.back().end = i + 1;
    const std::size_t piece = piece_rows(quota());
    const auto piece_end = [&](const Range& range, std::size_t begin) {
        std::size_t end = std::min(begin + piece, range.end);
        while (end < range.end && missing[end].id == missing[end - 1].id) ++end;  // equal ids share one record
        return end;
    };
    const auto work_on = [&](const Range& range, std::size_t begin, std::size_t end, const FetchedRows& fetched, std::size_t first) {
        const std::span items(missing.data() + begin, end - begin);
        insert_fetched(*range.partition, items, fetched, first, flags);
        work(*range.partition, items.data(), static_cast<uint32_t>(items.size()));
        evict(*range.partition);
    };
    // With the lock held, piece by piece, so that a call with more rows than fit does not exceed the budget.
    const auto fetch_and_work = [&](const Range& range) {
        for (std::size_t begin = range.begin, end; begin < range.end; begin = end) {
            end = piece_end(range, begin);
            work_on(range, begin, end, fetch(std::span(missing).subspan(begin, end - begin)), 0);
        }
    };
    if (hold_locks) {
        for (const Range& range : ranges) {
            std::lock_guard held(range.partition->lock);
            fetch_and_work(range);
        }
        return {};
    }
    for (Range& range : ranges) {
        std::lock_guard held(range.partition->lock);
        range.departures = range.partition->departures;
    }
    const FetchedRows fetched = fetch(missing);
    std::vector<Item> again;
    for (const Range& range : ranges) {
        std::lock_guard held(range.partition->lock);
        std::size_t begin = range.begin;
        // Stops where an eviction between two pieces may have made a fetched record stale.
        while (begin < range.end && range.partition->departures == range.departures) {
            const std::size_t end = piece_end(range, begin);
            work_on(range, begin, end, fetched, begin);
            begin = end;
        }
        if (begin == range.end) continue;
        retries_.fetch_add(1, std::memory_order_relaxed);
        again.insert(again.end(), missing.begin() + static_cast<std::ptrdiff_t>(begin),
                     missing.begin() + static_cast<std::ptrdiff_t>(range.end));
    }
    return again;
}

void RowTable::insert_fetched(Partition& partition, std::span<const Item> items, const FetchedRows& fetched,
                              std::size_t first, uint64_t flags) {
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (uint64_t* place = partition.find_place(items[i].id, items[i].home)) {
            *place |= flags;
        } else if (fetched.found[first + i]) {
            unpack(fetched.record(first + i), shape_.at(partition.insert(items[i].id, items[i].home)));
            uint64_t& inserted = *partition.find_place(items[i].id, items[i].home);
            inserted = (inserted & ~kRowFlags) | kStored | flags;
            partition.cold_only.fetch_sub(1, std::memory_order_relaxed);
        }
    }
}

// Removes an eighth of the rows, the least used ones: first those not referenced since the last eviction, and of those the
// ones with the fewest occurrences in the data (the count is part of the row and survives on disk), then the oldest.
void RowTable::evict(Partition& partition) {
    const uint32_t live = partition.live.load(std::memory_order_relaxed), most = quota();
    if (live <= most) return;
    struct Candidate {
        uint64_t rank;
        int64_t id;
    };
    thread_local std::vector<Candidate> candidates;
    thread_local std::vector<std::byte> record;
    candidates.clear();
    partition.each([&](int64_t id, uint64_t place) {
        const RowMeta& meta = shape_.at(place).meta();
        const uint64_t referenced = place & kReferenced ? uint64_t{1} << 63 : 0;
        candidates.push_back({referenced | uint64_t{meta.touches} << 31 | meta.last_step >> 1, id});
    });
    const std::size_t leaving = std::min<std::size_t>(live, live - most + most / kPieceShare);
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(leaving - 1), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
    record.resize(cold_->shape().record_bytes);
    uint64_t written = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const uint32_t home = home_of(mix(static_cast<uint64_t>(candidates[i].id)));
        uint64_t& place = *partition.find_place(candidates[i].id, home);
        if (i >= leaving) {
            place &= ~kReferenced;
            continue;
        }
        if (place & kDirty) {
            pack(shape_.at(place), record.data());
            cold_->put(candidates[i].id, record.data(), place & kStored);
            ++partition.departures;
            ++written;
        }
        partition.erase(candidates[i].id, home);
        partition.cold_only.fetch_add(1, std::memory_order_relaxed);
    }
    partition.release_slabs(most + piece_rows(most) + shape_.rows);
    evicted_.fetch_add(leaving, std::memory_order_relaxed);
    written_back_.fetch_add(written, std::memory_order_relaxed);
}

void RowTable::pack(const RowAt& row, std::byte* record) const {
    std::memcpy(record, &row.meta(), sizeof(RowMeta));
    auto* weights = reinterpret_cast<float*>(record + sizeof(RowMeta));
    float* state = weights + layout_.width;
    for (const PartPlan& part : layout_.parts) {
        std::memcpy(weights + part.column, part.weights.of(row), part.spec.width * sizeof(float));
        if (part.state_width)
            std::memcpy(state + part.state_column, part.state.of(row), part.state_width * sizeof(float));
    }
}

void RowTable::unpack(const std::byte* record, const RowAt& row) const {
    std::memcpy(&row.meta(), record, sizeof(RowMeta));
    const auto* weights = reinterpret_cast<const float*>(record + sizeof(RowMeta));
    const float* state = weights + layout_.width;
    for (const PartPlan& part : layout_.parts) {
        std::memcpy(part.weights.of(row), weights + part.column, part.spec.width * sizeof(float));
        if (part.state_width)
            std::memcpy(part.state.of(row), state + part.state_column, part.state_width * sizeof(float));
    }
}

// Adds the rows that only the cold tier had at that moment; the result is sorted by id.
RowBlockData RowTable::with_cold_rows(RowBlockData&& hot, const ColdView& view, uint32_t partition) const {
    RecordCollector cold(cold_->shape());
    cold_->each(view, partition, [&](int64_t id, const std::byte* record) {
        if (!std::binary_search(hot.ids.begin(), hot.ids.end(), id)) cold.add(id, record);
    });
    return cold.empty() ? std::move(hot) : merged_by_id(hot, cold.sorted());
}

void RowTable::prefetch(std::span<const int64_t> ids) {
    if (!cold_) return;
    prefetched_.fetch_add(each_resident_group(ids, 1, kReferenced, [](Partition&, Item*, uint32_t) {}), std::memory_order_relaxed);
}

TierCounts RowTable::tier_counts() const {
    TierCounts counts;
    for (const Partition& partition : partitions_) {
        counts.hot_rows += partition.live.load(std::memory_order_relaxed);
        counts.cold_rows += partition.cold_only.load(std::memory_order_relaxed);
    }
    counts.lookups = lookups_, counts.misses = misses_, counts.prefetched = prefetched_, counts.evicted = evicted_;
    counts.written_back = written_back_, counts.retries = retries_;
    if (cold_) counts.disk = cold_->counts();
    return counts;
}

}  // namespace gearshift
