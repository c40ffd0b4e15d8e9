// Reads complete rows: the current state of a partition, and the copy-on-write cut of all partitions.
//
// A row of the cut that leaves memory unchanged since it was read from the cold tier, or written to it, is not saved: the
// tier's view has it.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "row_table.h"

namespace gearshift {
namespace {

struct Entry {
    int64_t id;
    uint64_t place;
};

struct Before {
    CutOrder order;
    bool operator()(const Entry& a, const Entry& b) const {
        if (order == CutOrder::by_id) return a.id < b.id;
        return mix(static_cast<uint64_t>(a.id)) < mix(static_cast<uint64_t>(b.id));
    }
};

constexpr std::size_t kRowsPerHold = 1024;  // rows copied per acquisition of a partition's lock

}  // namespace

void RowTable::copy_out(const RowAt& row, RowBlockData& block, std::size_t i) const {
    for (const PartPlan& part : layout_.parts) {
        std::memcpy(block.weights.data() + i * layout_.width + part.column, part.weights.of(row), part.spec.width * 4);
        if (part.state_width)
            std::memcpy(block.state.data() + i * layout_.state_width + part.state_column, part.state.of(row),
                        part.state_width * 4);
    }
    const RowMeta& meta = row.meta();
    block.touches[i] = meta.touches;
    block.last_step[i] = meta.last_step;
    block.updates[i] = meta.updates;
    block.tables[i] = static_cast<uint16_t>(meta.table);
}

void RowTable::copy_in(const RowBlockView& block, std::size_t i, const RowAt& row) const {
    for (const PartPlan& part : layout_.parts) {
        std::memcpy(part.weights.of(row), block.weights + i * layout_.width + part.column, part.spec.width * 4);
        if (part.state_width)
            std::memcpy(part.state.of(row), block.state + i * layout_.state_width + part.state_column,
                        part.state_width * 4);
    }
    row.meta() = {block.touches[i], block.last_step[i], std::min(block.updates[i], kMostUpdates), block.tables[i]};
}

RowBlockData RowTable::read_partition(uint32_t number) {
    Partition& partition = partitions_.at(number);
    std::unique_lock held(partition.lock);
    ColdView view;
    if (cold_) view = cold_->view(number / kGroupPartitions);
    std::vector<Entry> entries;
    entries.reserve(partition.live);
    partition.each([&](int64_t id, uint64_t place) { entries.push_back({id, place}); });
    std::sort(entries.begin(), entries.end(), Before{CutOrder::by_id});
    RowBlockData block(layout_.width, layout_.state_width, entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
        block.ids[i] = entries[i].id;
        copy_out(shape_.at(entries[i].place), block, i);
    }
    held.unlock();
    if (cold_) block = with_cold_rows(std::move(block), view, number);
    return rules_ ? living(std::move(block), rules_->horizons()) : std::move(block);
}

// A row moves between the tiers under its partition's lock. With all locks of a group held, each of its rows is in exactly
// one tier, and the cut sees both tiers at the same moment.
std::size_t RowTable::begin_group_cut(uint32_t group) {
    std::array<std::unique_lock<std::mutex>, kGroupPartitions> held;
    std::size_t rows = 0;
    for (uint32_t i = 0; i < kGroupPartitions; ++i)
        held[i] = std::unique_lock(partitions_[group * kGroupPartitions + i].lock);
    if (cold_) cut_views_[group] = cold_->view(group);
    for (uint32_t i = 0; i < kGroupPartitions; ++i) {
        Partition& partition = partitions_[group * kGroupPartitions + i];
        rows += partition.begin_cut() + partition.cold_only.load(std::memory_order_relaxed);
    }
    return rows;
}

// Pushes wait at the gate. Pulls may still create rows; such a row may or may not be in the cut, with its initial values.
void RowTable::begin_cut() {
    std::lock_guard one(cut_lock_);
    if (cut_open_) throw std::invalid_argument("a cut is open already: read or close it first");
    const Gate::Closed no_pushes(gate_);
    std::size_t rows = 0;
    try {
        for (uint32_t g = 0; g < kColdGroups; ++g) rows += begin_group_cut(g);
    } catch (...) {
        for (Partition& partition : partitions_) partition.end_cut(slab_rows());
        cut_views_ = {};
        throw;
    }
    if (rules_) cut_rules_ = rules_->state();
    cut_size_ = rules_ && rules_->any_expires() ? rules_->rows() : rows;
    cut_read_ = {};
    cut_open_ = true;
}

RowBlockData RowTable::read_cut_partition(uint32_t number) {
    std::lock_guard one(cut_lock_);
    if (!cut_open_) throw std::invalid_argument("the cut is closed");
    RowBlockData block = take_cut_partition(number, CutOrder::by_id);
    if (cold_) {
        const uint32_t group = number / kGroupPartitions;
        block = with_cold_rows(std::move(block), cut_views_[group], number);
        const auto begin = cut_read_.begin() + group * kGroupPartitions;
        if (std::all_of(begin, begin + kGroupPartitions, [](bool read) { return read; })) cut_views_[group] = {};
    }
    return living(std::move(block), cut_rules_.horizons);
}

// The rows in memory, without those that the cold tier has as they are. A row that was written since the cut counts as not
// stored. The lock is only held briefly: first for the ids of the cut, then for their rows in pieces, last for the list of
// the rows that were saved. These are read without it: their places are kept for the cut, and slabs stay while it is open.
RowBlockData RowTable::take_cut_partition(uint32_t number, CutOrder order) {
    Partition& partition = partitions_.at(number);
    if (cut_read_[number]) throw std::invalid_argument("this partition of the cut was read already: a cut is read once");
    cut_read_[number] = true;
    std::vector<Entry> entries;
    {
        std::lock_guard held(partition.lock);
        PartitionCut& cut = *partition.cut;
        entries.reserve(cut.live);
        partition.each([&](int64_t id, uint64_t place) {
            if (cut.needs(shape_.number(place)) && !is_on_disk(place)) entries.push_back({id, place});
        });
        for (const PartitionCut::Saved& row : cut.saved) entries.push_back({row.id, kNowhere});
    }
    std::sort(entries.begin(), entries.end(), Before{order});
    RowBlockData block(layout_.width, layout_.state_width, entries.size());
    for (std::size_t begin = 0; begin < entries.size(); begin += kRowsPerHold) {
        std::lock_guard held(partition.lock);
        PartitionCut& cut = *partition.cut;
        for (std::size_t i = begin; i < std::min(begin + kRowsPerHold, entries.size()); ++i) {
            const auto [id, place] = entries[i];
            block.ids[i] = id;
            if (place == kNowhere || !cut.needs(shape_.number(place))) continue;  // filled in below
            copy_out(shape_.at(place), block, i);
            cut.mark(shape_.number(place));  // read: writers need not save it any more
        }
    }
    std::vector<PartitionCut::Saved> saved;
    {
        std::lock_guard held(partition.lock);
        saved = partition.cut->saved;
    }
    for (const auto& [id, place] : saved) {
        const auto at = std::lower_bound(entries.begin(), entries.end(), Entry{id, 0}, Before{order});
        if (at == entries.end() || at->id != id) continue;  // not in `entries`: skipped by the loop above
        copy_out(shape_.at(place), block, static_cast<std::size_t>(at - entries.begin()));
    }
    partition.end_cut(slab_rows());
    return block;
}

void RowTable::end_cut() {
    std::lock_guard one(cut_lock_);
    for (Partition& partition : partitions_) partition.end_cut(slab_rows());
    cut_views_ = {};
    cut_rules_ = {};
    cut_open_ = false;
}

}  // namespace gearshift
