// How the table applies its rules of admission and expiry (row_rules.h): which ids of a call have a row, and what is
// removed when. A row that is over is treated like an absent one wherever it is met; removing it is only housekeeping.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "row_birth.h"
#include "row_table.h"

namespace gearshift {
namespace {

constexpr uint32_t kLookAhead = 16;

}  // namespace

void RowTable::set_rules(std::vector<RowRule> by_table) {
    if (rules_ || cold_ || size()) throw std::invalid_argument("rules are given once, to an empty table");
    rules_ = std::make_unique<RowRules>(std::move(by_table), seed_, layout_.parts.front().spec.width);
}

void RowTable::restore_rules(const RuleState& state) {
    if (!rules_) throw std::invalid_argument("this table has no rules");
    rules_->restore(state);
}

bool RowTable::is_over(const RowAt& row) const {
    return rules_ && rules_->is_over(row.meta(), layout_.parts.front().weights.of(row));
}

bool RowTable::is_over(const std::byte* record) const {
    if (!rules_) return false;
    RowMeta meta;
    std::memcpy(&meta, record, sizeof meta);
    return rules_->is_over(meta, reinterpret_cast<const float*>(record + sizeof meta));
}

bool RowTable::is_over(const std::byte* record, std::span<const uint32_t> horizons) const {
    if (!rules_) return false;
    RowMeta meta;
    std::memcpy(&meta, record, sizeof meta);
    return rules_->is_over(meta, reinterpret_cast<const float*>(record + sizeof meta), horizons);
}

bool RowTable::exists(const Partition& partition, const Item& item) const {
    const uint64_t place = partition.find(item.id, item.home);
    return place != kNowhere && !is_over(shape_.at(place));
}

void RowTable::count_row(Partition& partition, uint64_t place, void (RowRules::*as)(uint32_t, const RowMeta&, const float*)) {
    if (!rules_) return;
    const RowAt row = shape_.at(place);
    const auto number = static_cast<uint32_t>(&partition - partitions_.data());
    (rules_.get()->*as)(number, row.meta(), layout_.parts.front().weights.of(row));
}

// Writes the first values of rows that are over, and returns the number of the other ids, which come first.
uint32_t RowTable::show_ended(Partition& partition, Item* items, uint32_t n, float* out_UW) {
    if (!rules_->any_expires()) return n;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (i + kLookAhead < n) prefetch_bucket(partition, items[i + kLookAhead].home);
        const uint64_t place = partition.find(items[i].id, items[i].home);
        if (place != kNowhere && is_over(shape_.at(place)))
            show_unborn(layout_, seed_, items[i].id, out_UW + std::size_t{items[i].position} * layout_.width);
        else
            items[kept++] = items[i];
    }
    return kept;
}

// Leaves out ids that get no row. A row that is over becomes a new one. Rows that exist are counted again after the push.
uint32_t RowTable::admit(const PushCall& call, Partition& partition, Item* items, uint32_t n) {
    const auto number = static_cast<uint32_t>(&partition - partitions_.data());
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (i + kLookAhead < n) prefetch_bucket(partition, items[i + kLookAhead].home);
        const Item item = items[i];
        const uint64_t place = partition.find(item.id, item.home);
        const RowAt row = place == kNowhere ? RowAt{} : shape_.at(place);
        if (place != kNowhere && !is_over(row)) {
            count_row(partition, place, &RowRules::forget_row);
        } else {
            const uint32_t named = call.tables_U ? call.tables_U[item.position] : 0;
            const uint32_t table = place != kNowhere && row.meta().table ? row.meta().table : named;
            if (!rules_->admits(number, {item.id, call.counts_U[item.position]}, table, call.step)) continue;
            if (place != kNowhere) {
                partition.save_before_write(item.id, place);
                birth_row(layout_, seed_, item.id, table, row);
            }
        }
        items[kept++] = item;
    }
    return kept;
}

void RowTable::push_by_rules(const PushCall& call, Partition& partition, Item* items, uint32_t n) {
    const uint32_t kept = admit(call, partition, items, n);
    kernels_.push(call, partition, items, kept);
    for (uint32_t i = 0; i < kept; ++i)
        count_row(partition, partition.find(items[i].id, items[i].home), &RowRules::count_row);
}

void RowTable::move_horizons(uint32_t mark, std::span<const uint32_t> horizons) {
    if (!rules_) throw std::invalid_argument("a table without rules has no horizons");
    const Gate::Closed waiting(gate_);
    const double before = static_cast<double>(rules_->rows());
    const uint64_t over = rules_->move_horizons(mark, horizons);
    if (!over) return;
    sweeping_ = kPartitions;
    if (cold_) cold_->add_stale(static_cast<double>(over) / before);
}

std::vector<RuleCounts> RowTable::rule_counts() {
    if (!rules_) throw std::invalid_argument("this table has no rules");
    const Gate::Closed waiting(gate_);
    return rules_->counts();
}

std::vector<uint64_t> RowTable::rows_by_table() {
    if (!rules_) throw std::invalid_argument("this table has no rules");
    const Gate::Closed waiting(gate_);
    return rules_->rows_by_table();
}

// Removes the rows of one partition that are over: a slice of the work after each push.
void RowTable::sweep() {
    uint32_t left = sweeping_.load(std::memory_order_relaxed);
    do {
        if (left == 0) return;
    } while (!sweeping_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed));
    Partition& partition = partitions_[sweep_at_.fetch_add(1, std::memory_order_relaxed) % kPartitions];
    std::vector<int64_t> ended;
    std::lock_guard held(partition.lock);
    partition.each([&](int64_t id, uint64_t place) {
        if (is_over(shape_.at(place))) ended.push_back(id);
    });
    for (int64_t id : ended) remove_ended(partition, id, home_of(mix(static_cast<uint64_t>(id))));
}

// A record on disk must not come back in place of a newer row: an older one might have been large enough to stay.
void RowTable::remove_ended(Partition& partition, int64_t id, uint32_t home) {
    const uint64_t place = partition.find(id, home);
    if (place & kStored) {
        if (place & kDirty) {
            cold_->put(id, nullptr, true);
            partition.departures.note(id);
        } else {
            partition.cold_only.fetch_add(1, std::memory_order_relaxed);
        }
    }
    partition.erase(id, home);
}

// The rows of a block that had not ended when these were the horizons.
RowBlockData RowTable::living(RowBlockData&& block, std::span<const uint32_t> horizons) const {
    if (!rules_ || !rules_->any_expires()) return std::move(block);
    std::vector<std::size_t> kept;
    for (std::size_t i = 0; i < block.rows(); ++i) {
        const RowMeta meta{block.touches[i], block.last_step[i], block.updates[i], block.tables[i]};
        if (!rules_->is_over(meta, block.weights.data() + i * block.width, horizons)) kept.push_back(i);
    }
    if (kept.size() == block.rows()) return std::move(block);
    RowBlockData rest(block.width, block.state_width, kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) rest.copy_row(i, block, kept[i]);
    return rest;
}

}  // namespace gearshift
