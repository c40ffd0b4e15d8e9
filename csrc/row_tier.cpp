// How the table uses its cold tier: rows that are not in memory are loaded before they are used, and the least used
// rows are evicted when a partition has too many.
//
// A call first splits its ids, under each partition's lock, into rows in memory, which it processes at once, and
// missing rows, which it fetches from disk without any lock. Then, under the lock again, each fetched row is inserted
// unless its row has become resident in the meantime, and it is processed in the same critical section. So no row needs
// to be pinned.
//
// Why a late fetch cannot overwrite a newer update: while the row is resident, the fetched record is ignored. If the row
// was resident, was changed and left again, the partition noted its departure (`Departures`), which it does while anyone
// fetches; the caller finds the id there, and fetches its row again. After a few such retries it holds the lock.
//
// A row in memory takes precedence over its record on disk. A row that is evicted unchanged is not written again.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "feature_hash.h"
#include "row_table.h"

namespace gearshift {
namespace {

constexpr int kOptimisticTries = 3;
constexpr std::size_t kIndexBytesPerRow = 36;  // the index has 16-byte slots, at least 4/9 of them full
constexpr std::size_t kBufferShare = 8;        // 1/8 of the budget is for rows that are about to be written
constexpr std::size_t kMostBufferBytes = std::size_t{256} << 20;
constexpr std::size_t kWorkShare = 64;         // 1/64 of the budget each: blocks of a reader, rows of a fetch, merging
constexpr std::size_t kFewestWorkBytes = std::size_t{128} << 10, kMostWorkBytes = std::size_t{4} << 20;
constexpr uint32_t kCutShare = 8;              // 1/8 of the rows in memory, in addition: those changed while a cut waits
constexpr std::size_t kHeapShare = 32;         // freed memory that malloc may keep: 1/32 of the budget, in addition to it
constexpr std::size_t kFetchBytesPerRow = 96;  // of a row being fetched, in addition to its record
constexpr uint32_t kLookAhead = 16;
constexpr uint32_t kPieceShare = 32, kFewestInserted = 32;

class OneFetch {
public:
    explicit OneFetch(std::counting_semaphore<>& fetches) : fetches_(fetches) { fetches_.acquire(); }
    ~OneFetch() { fetches_.release(); }
    OneFetch(const OneFetch&) = delete;
    OneFetch& operator=(const OneFetch&) = delete;

private:
    std::counting_semaphore<>& fetches_;
};

template <class Items>
void sort_by_key(Items& items) {
    const auto before = [](const Item& a, const Item& b) { return key_of(a.id) < key_of(b.id); };
    if (!std::is_sorted(items.begin(), items.end(), before)) std::stable_sort(items.begin(), items.end(), before);
}

// Number of rows loaded into a partition before others are evicted.
uint32_t piece_rows(uint32_t quota) { return std::max(quota / kPieceShare, std::min(kFewestInserted, quota)); }

// Rows that leave beyond those that must: fewer of them keep memory fuller, but each time all rows are looked at.
uint32_t leaving_rows(uint32_t quota) { return std::max(quota / kPieceShare, std::min(kFewestInserted, quota / 8)); }

}  // namespace

std::size_t RowTable::add_cold_tier(std::string folder, std::size_t budget_bytes, std::size_t hot_rows, uint32_t tables,
                                    uint32_t shards) {
    if (cold_ || size()) throw std::invalid_argument("a cold tier is added once, to an empty table");
    const std::size_t work = std::clamp(budget_bytes / kWorkShare, kFewestWorkBytes, kMostWorkBytes);
    const ColdMemory memory{std::min(budget_bytes / kBufferShare, kMostBufferBytes), work, work, budget_bytes / kHeapShare};
    const std::size_t taken = memory.buffers + kMostReaders * memory.reading + kMostFetches * work + memory.merging;
    hot_bytes_ = budget_bytes > taken ? budget_bytes - taken : 0;
    rows_at_once_ = work / (file_shape().record_bytes + kFetchBytesPerRow);
    used_partitions_ = (kPartitions + shards - 1) / shards;
    fixed_quota_ = static_cast<uint32_t>((hot_rows + used_partitions_ - 1) / used_partitions_);
    lookups_ = std::make_unique<LookupCounts>(tables);
    ColdTier::Ended ended;
    if (rules_ && rules_->any_expires()) ended = [this](const std::byte* record) { return is_over(record); };
    cold_ = std::make_unique<ColdTier>(std::move(folder), file_shape(), memory, std::move(ended));
    open_cold_.store(cold_.get(), std::memory_order_release);
    for (Partition& partition : partitions_) partition.birth_flags = kDirty | kReferenced;
    return most_in_memory();
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
    // A partition's last slab is not full, and it notes the free rows of a slab.
    const std::size_t partition = sizeof(Partition) + shape_.bytes + shape_.rows * 2 * sizeof(uint64_t);
    const std::size_t index = cold_->index_bytes() + 2 * cold_->index_bytes() / kColdGroups;  // of a file in the making, too
    const std::size_t taken = index + expected_bytes() + used_partitions_ * partition + (rules_ ? rules_->memory_bytes() : 0);
    const std::size_t fitting = (hot_bytes_ > taken ? hot_bytes_ - taken : 0) / row / used_partitions_;
    const std::size_t piece = std::max<std::size_t>(fitting / (kPieceShare + 1), std::min<std::size_t>(kFewestInserted, fitting / 2));
    const std::size_t rows = fitting - piece;
    return static_cast<uint32_t>(std::clamp<std::size_t>(rows, 1, uint32_t{1} << 30));
}

// Saved rows take the memory of others. Rows that the cut has not read yet cannot make room: only the others can leave.
uint32_t RowTable::quota(const Partition& partition) const {
    const uint32_t all = quota();
    if (!partition.cut) return all;
    const auto saved = static_cast<uint32_t>(partition.cut->saved.size());
    return std::max({all - std::min(saved, all), partition.cut->unread + all / kCutShare, 1u});
}

uint32_t RowTable::slab_rows() const { return cold_ ? quota() + piece_rows(quota()) + shape_.rows : 0; }

void RowTable::each_resident_group(std::span<const int64_t> ids, uint32_t threads, Marks marks, const GroupWork& work,
                                   const MissingIds& note) {
    if (!cold_) return each_group(ids, threads, work);
    Items missing;
    each_split_group(ids, threads, marks, missing, [&](Partition& partition, Item* items, uint32_t n) {
        work(partition, items, n);
        if (partition.cut) evict(partition);  // it may have saved rows
    });
    note(missing);
    sort_by_key(missing);
    for (std::size_t begin = 0; begin < missing.size(); begin += rows_at_once_)
        bring_in_all(std::span(missing).subspan(begin, std::min(rows_at_once_, missing.size() - begin)), marks, work);
}

void RowTable::bring_in_all(std::span<Item> missing, Marks marks, const GroupWork& work) {
    Items again = bring_in(missing, marks, work);
    for (int tries = 1; !again.empty() && tries < kOptimisticTries; ++tries) again = bring_in(again, marks, work);
    if (!again.empty()) bring_in_locked(again, marks, work);
}

// Works on the rows in memory and marks them; the other ids are added to `missing`.
void RowTable::each_split_group(std::span<const int64_t> ids, uint32_t threads, Marks marks, Items& missing,
                                const GroupWork& work) {
    std::mutex missing_lock;
    each_group(ids, threads, [&](Partition& partition, Item* items, uint32_t n) {
        thread_local std::vector<Item> absent;
        absent.clear();
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; ++i) {
            if (i + kLookAhead < n) prefetch_bucket(partition, items[i + kLookAhead].home);
            if (uint64_t* place = partition.find_place(items[i].id, items[i].home)) {
                *place = marks.on(*place);
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

// Fetches without bringing anything into memory, as many rows at once as are paid for.
void RowTable::each_fetched(std::span<const Item> items, const std::function<void(const Item&, const std::byte*)>& visit) {
    for (std::size_t begin = 0; begin < items.size(); begin += rows_at_once_) {
        const std::span some = items.subspan(begin, std::min(rows_at_once_, items.size() - begin));
        const OneFetch one(fetches_);
        const FetchedRows fetched = fetch(some);
        for (std::size_t i = 0; i < some.size(); ++i) {
            const bool exists = fetched.found[i] && !is_over(fetched.record(i));
            visit(some[i], exists ? fetched.record(i) : nullptr);
        }
    }
}

FetchedRows RowTable::fetch(std::span<const Item> items) {
    FetchedRows rows{cold_->shape().record_bytes, AlignedBytes(items.size() * cold_->shape().record_bytes), {}};
    rows.found.resize(items.size());
    std::vector<int64_t> ids(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) ids[i] = items[i].id;
    cold_->fetch(ids, rows.records.data(), rows.found.data());
    return rows;
}

// While it exists, the partition notes which ids leave it.
struct RowTable::Missing {
    Missing(Partition& of, std::span<Item> items) : partition(&of), items(items) {}
    Missing(Missing&& other) noexcept : partition(std::exchange(other.partition, nullptr)), items(other.items), since(other.since) {}
    ~Missing() {
        if (!partition || !watching()) return;
        std::lock_guard held(partition->lock);
        partition->departures.unwatch(since);
    }
    void watch() {
        std::lock_guard held(partition->lock);
        since = partition->departures.watch();
    }
    bool watching() const { return since != kNotWatching; }

    static constexpr uint64_t kNotWatching = ~uint64_t{0};
    Partition* partition;
    std::span<Item> items;
    uint64_t since = kNotWatching;  // the first departure after the fetch began
};

// In the order of their keys, as they are in the files.
std::vector<RowTable::Missing> RowTable::missing_by_partition(std::span<Item> missing) {
    std::vector<Missing> ranges;
    for (std::size_t begin = 0, end; begin < missing.size(); begin = end) {
        const uint32_t number = partition_of(key_of(missing[begin].id));
        for (end = begin + 1; end < missing.size() && partition_of(key_of(missing[end].id)) == number;) ++end;
        ranges.emplace_back(partitions_[number], missing.subspan(begin, end - begin));
    }
    return ranges;
}

// A call with more rows than fit works on them in pieces, so that it does not exceed the budget.
std::size_t RowTable::piece_end(std::span<const Item> items, std::size_t begin) const {
    std::size_t end = std::min<std::size_t>(begin + piece_rows(quota()), items.size());
    while (end < items.size() && items[end].id == items[end - 1].id) ++end;  // their record was fetched once
    return end;
}

// Returns the ids that must be tried again, because their rows came and left meanwhile.
RowTable::Items RowTable::bring_in(std::span<Item> missing, Marks marks, const GroupWork& work) {
    const OneFetch one(fetches_);
    std::vector<Missing> ranges = missing_by_partition(missing);
    for (Missing& range : ranges) range.watch();
    FetchedRows fetched = fetch(missing);
    Items again;
    std::vector<int64_t> departed;
    for (const Missing& range : ranges) {
        Partition& partition = *range.partition;
        std::lock_guard held(partition.lock);
        uint64_t known = range.since;
        departed.clear();
        for (std::size_t begin = 0, end; begin < range.items.size(); begin = end) {
            end = piece_end(range.items, begin);
            if (const std::span left = partition.departures.since(known); !left.empty()) {
                departed.insert(departed.end(), left.begin(), left.end());
                std::sort(departed.begin(), departed.end());
                known = partition.departures.next();
            }
            const std::size_t first = static_cast<std::size_t>(range.items.data() - missing.data()) + begin;
            std::size_t kept = begin;  // the others move to `again`
            for (std::size_t i = begin; i < end; ++i) {
                const Item item = range.items[i];
                const bool left = !departed.empty() && std::binary_search(departed.begin(), departed.end(), item.id);
                if (left && !partition.find_place(item.id, item.home)) {
                    again.push_back(item);
                    continue;
                }
                if (kept != i) fetched.move(first + i - begin, first + kept - begin);
                range.items[kept++] = item;
            }
            work_on_fetched(partition, range.items.subspan(begin, kept - begin), fetched.record(first), fetched.found.data() + first, marks, work);
        }
    }
    retries_.fetch_add(again.size(), std::memory_order_relaxed);
    return again;
}

// Fetches with the lock of the partition held, so that nothing can leave it.
void RowTable::bring_in_locked(std::span<Item> missing, Marks marks, const GroupWork& work) {
    for (const Missing& range : missing_by_partition(missing)) {
        std::lock_guard held(range.partition->lock);
        for (std::size_t begin = 0, end; begin < range.items.size(); begin = end) {
            end = piece_end(range.items, begin);
            const std::span items = range.items.subspan(begin, end - begin);
            const FetchedRows fetched = fetch(items);
            work_on_fetched(*range.partition, items, fetched.record(0), fetched.found.data(), marks, work);
        }
    }
}

void RowTable::work_on_fetched(Partition& partition, std::span<Item> items, const std::byte* records, const uint8_t* found,
                               Marks marks, const GroupWork& work) {
    const std::size_t record_bytes = cold_->shape().record_bytes;
    for (std::size_t i = 0; i < items.size(); ++i, records += record_bytes) {
        if (uint64_t* place = partition.find_place(items[i].id, items[i].home)) {
            *place = marks.on(*place);
        } else if (found[i]) {
            const RowAt row = shape_.at(partition.insert(items[i].id, items[i].home));
            unpack(records, row);
            lookups_->add_load(row.meta().table);
            uint64_t& inserted = *partition.find_place(items[i].id, items[i].home);
            inserted = (inserted & ~kRowFlags) | kStored | marks.set;
            partition.cold_only.fetch_sub(1, std::memory_order_relaxed);
        }
    }
    if (items.empty()) return;
    work(partition, items.data(), static_cast<uint32_t>(items.size()));
    evict(partition);
}

// Removes a few of the rows: first those that no chunk in sight needs, of these the ones that are not in use (pulled or
// fetched, but not pushed since), and of these the ones with the fewest occurrences in the data (the count is part of the
// row and survives on disk), then the oldest. Rows that only an open cut's scan can take from memory stay: it would keep
// their places, so that nothing would be gained.
void RowTable::evict(Partition& partition) {
    const uint32_t live = partition.live.load(std::memory_order_relaxed), most = quota(partition);
    if (live <= most) return;
    struct Candidate {
        uint64_t rank;
        uint32_t slot;
        int64_t id;
    };
    thread_local std::vector<Candidate> candidates;
    thread_local std::vector<std::byte> record;
    candidates.clear();
    partition.each_slot([&](uint32_t slot, int64_t id, uint64_t& place) {
        const bool kept = partition.cut_needs(place) && !is_on_disk(place);
        if (kept) return;
        const RowMeta& meta = shape_.at(place).meta();
        const uint64_t needed = place & kInChunks ? 2 : 0, used = place & kReferenced ? 1 : 0;
        candidates.push_back({(needed | used) << 62 | uint64_t{meta.touches} << 30 | meta.last_step >> 2, slot, id});
        place &= ~kReferenced;
    });
    const std::size_t leaving = std::min<std::size_t>(candidates.size(), live - most + leaving_rows(most));
    if (leaving == 0) return;
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(leaving - 1), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
    record.resize(cold_->shape().record_bytes);
    uint64_t written = 0;
    const Bucket* buckets = partition.buckets.load(std::memory_order_relaxed);
    for (const Candidate& leaves : std::span(candidates).first(leaving)) {
        const uint64_t place = buckets[leaves.slot / 4].place[leaves.slot % 4];
        if (is_over(shape_.at(place))) {
            remove_ended(partition, leaves.id, home_of(mix(static_cast<uint64_t>(leaves.id))));
            continue;
        }
        if (place & kDirty) {
            pack(shape_.at(place), record.data());
            cold_->put(leaves.id, record.data(), place & kStored);
            partition.departures.note(leaves.id);
            ++written;
        }
        partition.erase_slot(leaves.slot);
        partition.cold_only.fetch_add(1, std::memory_order_relaxed);
    }
    if (!partition.cut) partition.release_slabs(slab_rows());
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

TierCounts RowTable::tier_counts() const {
    TierCounts counts;
    for (const Partition& partition : partitions_) {
        counts.hot_rows += partition.live.load(std::memory_order_relaxed);
        counts.cold_rows += partition.cold_only.load(std::memory_order_relaxed);
    }
    if (rules_ && rules_->any_expires()) counts.cold_rows = size() > counts.hot_rows ? size() - counts.hot_rows : 0;
    const ColdTier* cold = open_cold_.load(std::memory_order_acquire);
    if (!cold) return counts;
    for (const TableLookups& of_table : lookups_by_table()) {
        counts.lookups += of_table.lookups;
        counts.misses += of_table.misses;
    }
    counts.prefetched = prefetched_, counts.evicted = evicted_;
    counts.written_back = written_back_, counts.retries = retries_;
    counts.disk = cold->counts();
    return counts;
}

}  // namespace gearshift
