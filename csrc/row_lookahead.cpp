// Look-ahead in chunks: the ids of the batches that will be trained next are announced, and then their rows are brought in
// together, while the current chunk is trained.
//
//   begin_chunk     the chunk that was announced last is now trained; the one before it is no longer needed
//   expect          ids of the next chunk: rows in memory are marked as needed, the other ids are noted
//   load_expected   brings in some of their rows, in the order of the files; several threads may call it
//
// Two chunks are in sight, one with an even and one with an odd number, and each has a flag in the place of a row. `evict`
// takes rows without such a flag first. A push clears the flag of the chunk that is trained: most of the rows that a chunk
// loads occur in it once, and the others have more occurrences, so they are not the first to leave. The flags change no
// result: a row that left memory all the same is fetched again when it is pulled.
#include <algorithm>

#include "row_table.h"

namespace gearshift {
namespace {

constexpr std::size_t kChunkShare = 4;  // a chunk may bring in 1/4 of the rows that fit in memory

void sort_and_deduplicate(std::vector<int64_t>& ids) {
    const auto before = [](int64_t a, int64_t b) { return key_of(a) < key_of(b); };
    if (std::is_sorted(ids.begin(), ids.end(), before)) return;
    std::sort(ids.begin(), ids.end(), before);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

void RowTable::begin_chunk() {
    if (!cold_) return;
    std::lock_guard one(chunk_lock_);
    chunk_ ^= 1;
    for (Partition& partition : partitions_) {
        std::lock_guard held(partition.lock);
        partition.each([&](int64_t, uint64_t& place) { place &= ~kInChunk[chunk_]; });
    }
    for (std::vector<int64_t>& ids : expected_) std::vector<int64_t>().swap(ids);
    expected_ids_ = 0;
}

double RowTable::expect(std::span<const int64_t> ids) {
    if (!cold_) return 0;
    std::lock_guard one(chunk_lock_);
    Items missing;
    each_split_group(ids, 1, {kInChunk[chunk_], 0}, missing, [](Partition&, Item*, uint32_t) {});
    for (const Item& item : missing) expected_[group_of(key_of(item.id))].push_back(item.id);
    expected_ids_ += missing.size();
    return static_cast<double>(expected_ids_ * kChunkShare) / static_cast<double>(most_in_memory());
}

// Several threads may load: while one waits for the disk, another puts its rows into memory.
bool RowTable::load_expected() {
    if (!cold_) return false;
    std::vector<int64_t> ids;
    uint64_t flag;
    {
        std::lock_guard one(chunk_lock_);
        ids = take_expected();
        flag = kInChunk[chunk_];
    }
    if (!ids.empty()) bring_in_ahead(ids, flag);
    return !ids.empty();
}

// The last ids of the first group that has some, as many as are fetched at once, in the order of the files.
std::vector<int64_t> RowTable::take_expected() {
    const auto waits = [](const std::vector<int64_t>& ids) { return !ids.empty(); };
    const auto group = std::find_if(expected_.begin(), expected_.end(), waits);
    if (group == expected_.end()) return {};
    sort_and_deduplicate(*group);
    const auto first = group->end() - static_cast<std::ptrdiff_t>(std::min(group->size(), rows_at_once_));
    std::vector<int64_t> taken(first, group->end());
    group->erase(first, group->end());
    if (group->empty()) std::vector<int64_t>().swap(*group);
    return taken;
}

void RowTable::prefetch(std::span<const int64_t> ids) {
    if (!cold_) return;
    bring_in_ahead(ids, 0);
}

void RowTable::bring_in_ahead(std::span<const int64_t> ids, uint64_t flag) {
    const Marks marks{kReferenced | flag, 0};
    each_resident_group(ids, 1, marks, [](Partition&, Item*, uint32_t) {}, [this](std::span<const Item> missing) {
        prefetched_.fetch_add(missing.size(), std::memory_order_relaxed);
    });
}

}  // namespace gearshift
