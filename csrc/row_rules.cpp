#include "row_rules.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "row_birth.h"

namespace gearshift {
namespace {

double power(double base, uint32_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

// Uniform in [0, 1), the same on every machine.
double draw(uint64_t seed, int64_t id, uint32_t step) {
    const uint64_t bits = mix(birth_hash(seed ^ 0xa076'1d64'78bd'642fULL, id) + step * 0x9e3779b97f4a7c15ULL);
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

bool is_shorter(const float* weights, uint32_t width, double limit) {
    double squares = 0;
    for (uint32_t c = 0; c < width; ++c) squares += static_cast<double>(weights[c]) * static_cast<double>(weights[c]);
    return squares < limit * limit;
}

}  // namespace

bool RowRule::ends(const RowMeta& meta, const float* weights, uint32_t width, uint32_t horizon) const {
    return expires && meta.last_step < horizon && meta.touches < touches_below && is_shorter(weights, width, norm_below);
}

RowRules::RowRules(std::vector<RowRule> by_table, uint64_t seed, uint32_t width)
    : rules_(std::move(by_table)), seed_(seed), width_(width), horizons_(rules_.size()) {
    if (rules_.empty() || rules_.size() > kMostTable + 1) throw std::invalid_argument("rules are for 1 to 1,024 tables");
    for (const RowRule& rule : rules_) {
        any_expires_ |= rule.expires;
        if (rule.min_count > CountSketch::kMostCount) throw std::invalid_argument("min_count is at most 255");
    }
    for (OfPartition& partition : partitions_) {
        partition.tables.resize(rules_.size());
        for (std::size_t t = 0; t < rules_.size(); ++t) partition.tables[t].ending.resize(rules_[t].expires);
    }
}

std::vector<uint32_t> RowRules::horizons() const {
    std::vector<uint32_t> all;
    for (const auto& horizon : horizons_) all.push_back(horizon.load(std::memory_order_relaxed));
    return all;
}

bool RowRules::is_over(const RowMeta& meta, const float* weights) const {
    const uint32_t table = known(meta.table);
    return rules_[table].ends(meta, weights, width_, horizons_[table].load(std::memory_order_relaxed));
}

bool RowRules::is_over(const RowMeta& meta, const float* weights, std::span<const uint32_t> horizons) const {
    const uint32_t table = known(meta.table);
    return rules_[table].ends(meta, weights, width_, horizons[table]);
}

bool RowRules::admits(uint32_t number, const CountedId& id, uint32_t table, uint32_t step) {
    table = known(table);
    const RowRule& rule = rules_[table];
    if (!rule.gated()) return true;
    OfPartition& partition = partitions_[number];
    RuleCounts& counts = partition.tables[table].counts;
    bool admitted;
    if (rule.min_count > 1) {
        std::lock_guard held(partition.lock);
        admitted = partition.sketch.count(id.id) + uint64_t{id.count} >= rule.min_count;
        partition.counted.push_back(id);
    } else {
        admitted = draw(seed_, id.id, step) < 1.0 - power(1.0 - rule.admit, id.count);
    }
    if (admitted)
        ++counts.admitted;
    else
        counts.refused_occurrences += id.count, ++counts.refused_gradients;
    return admitted;
}

void RowRules::end_push() {
    for (OfPartition& partition : partitions_) {
        std::lock_guard held(partition.lock);
        if (partition.counted.empty()) continue;
        const std::size_t before = partition.sketch.memory_bytes();
        partition.sketch.add(partition.counted);
        sketch_bytes_.fetch_add(partition.sketch.memory_bytes() - before, std::memory_order_relaxed);
        partition.counted.clear();
    }
}

// ---- rows by the mark of their last push ----

std::size_t RowRules::mark_of(uint32_t step) const {
    const auto after = std::upper_bound(marks_.begin(), marks_.end(), step);
    return after == marks_.begin() ? 0 : static_cast<std::size_t>(after - marks_.begin()) - 1;
}

void RowRules::count_row(uint32_t number, const RowMeta& meta, const float* weights) {
    const uint32_t table = known(meta.table);
    if (is_over(meta, weights)) return;
    Ledger& ledger = partitions_[number].tables[table];
    ++ledger.rows;
    rows_.fetch_add(1, std::memory_order_relaxed);
    if (rules_[table].ends(meta, weights, width_, ~uint32_t{0})) ++ledger.ending[mark_of(meta.last_step)];
}

void RowRules::forget_row(uint32_t number, const RowMeta& meta, const float* weights) {
    const uint32_t table = known(meta.table);
    if (is_over(meta, weights)) return;
    Ledger& ledger = partitions_[number].tables[table];
    --ledger.rows;
    rows_.fetch_sub(1, std::memory_order_relaxed);
    if (rules_[table].ends(meta, weights, width_, ~uint32_t{0})) --ledger.ending[mark_of(meta.last_step)];
}

uint64_t RowRules::rows() const { return rows_.load(std::memory_order_relaxed); }

uint64_t RowRules::move_horizons(uint32_t mark, std::span<const uint32_t> horizons) {
    if (horizons.size() != rules_.size()) throw std::invalid_argument("there is one horizon for each table");
    uint64_t all = 0;
    for (std::size_t t = 0; t < rules_.size(); ++t) {
        if (!rules_[t].expires) continue;
        const std::size_t end = mark_of(horizons[t]);
        if (marks_[end] <= horizons_[t].load(std::memory_order_relaxed)) continue;
        for (OfPartition& partition : partitions_) {
            Ledger& ledger = partition.tables[t];
            uint64_t over = 0;
            for (std::size_t m = 0; m < end; ++m) over += ledger.ending[m], ledger.ending[m] = 0;
            ledger.rows -= over;
            ledger.counts.expired += over;
            all += over;
        }
        horizons_[t].store(marks_[end], std::memory_order_relaxed);
    }
    rows_.fetch_sub(all, std::memory_order_relaxed);
    if (mark > marks_.back()) {
        marks_.push_back(mark);
        for (OfPartition& partition : partitions_)
            for (std::size_t t = 0; t < rules_.size(); ++t)
                if (rules_[t].expires) partition.tables[t].ending.push_back(0);
    }
    drop_old_marks();
    return all;
}

// Those before all horizons: the rows that they counted are over.
void RowRules::drop_old_marks() {
    uint32_t oldest = marks_.back();
    for (std::size_t t = 0; t < rules_.size(); ++t)
        if (rules_[t].expires) oldest = std::min(oldest, horizons_[t].load(std::memory_order_relaxed));
    const auto unused = static_cast<std::ptrdiff_t>(mark_of(oldest));
    if (unused == 0) return;
    marks_.erase(marks_.begin(), marks_.begin() + unused);
    for (OfPartition& partition : partitions_)
        for (std::size_t t = 0; t < rules_.size(); ++t)
            if (rules_[t].expires) partition.tables[t].ending.erase(partition.tables[t].ending.begin(),
                                                                    partition.tables[t].ending.begin() + unused);
}

// ---- figures and checkpoints ----

std::vector<RuleCounts> RowRules::counts() const {
    std::vector<RuleCounts> all(rules_.size());
    for (const OfPartition& partition : partitions_)
        for (std::size_t t = 0; t < rules_.size(); ++t) {
            const RuleCounts& own = partition.tables[t].counts;
            all[t].admitted += own.admitted, all[t].expired += own.expired;
            all[t].refused_occurrences += own.refused_occurrences, all[t].refused_gradients += own.refused_gradients;
        }
    return all;
}

std::vector<uint64_t> RowRules::rows_by_table() const {
    std::vector<uint64_t> all(rules_.size());
    for (const OfPartition& partition : partitions_)
        for (std::size_t t = 0; t < rules_.size(); ++t) all[t] += partition.tables[t].rows;
    return all;
}

RuleState RowRules::state() const {
    RuleState state{marks_, horizons(), {}, {}, {}};
    const auto used = [](const OfPartition& partition) {
        return !partition.sketch.empty() || std::any_of(partition.tables.begin(), partition.tables.end(), [](const Ledger& own) {
            return own.counts.admitted || own.counts.refused_gradients || own.counts.expired;
        });
    };
    const bool sketches = sketch_bytes_.load(std::memory_order_relaxed) > 0;
    for (uint32_t p = 0; p < kPartitions; ++p) {
        const OfPartition& partition = partitions_[p];
        if (!used(partition)) continue;
        state.partitions.push_back(p);
        for (const Ledger& own : partition.tables) state.counts.push_back(own.counts);
        if (!sketches) continue;
        const auto counters = partition.sketch.counters();
        state.counters.insert(state.counters.end(), counters.begin(), counters.end());
        state.counters.resize(state.partitions.size() * CountSketch::kBytes);  // zeros, if it has none
    }
    return state;
}

void RowRules::restore(const RuleState& state) {
    const std::size_t partitions = state.partitions.size();
    if (state.horizons.size() != rules_.size() || state.marks.empty() || state.counts.size() != partitions * rules_.size() ||
        (!state.counters.empty() && state.counters.size() != partitions * CountSketch::kBytes))
        throw std::invalid_argument("the state of admission and expiry is of other tables");
    marks_ = state.marks;
    for (std::size_t t = 0; t < rules_.size(); ++t) horizons_[t].store(state.horizons[t], std::memory_order_relaxed);
    for (OfPartition& partition : partitions_)
        for (std::size_t t = 0; t < rules_.size(); ++t)
            partition.tables[t].ending.assign(rules_[t].expires ? marks_.size() : 0, 0);
    for (std::size_t i = 0; i < partitions; ++i) {
        OfPartition& partition = partitions_.at(state.partitions[i]);
        for (std::size_t t = 0; t < rules_.size(); ++t) partition.tables[t].counts = state.counts[i * rules_.size() + t];
        if (state.counters.empty()) continue;
        partition.sketch.restore(std::span(state.counters).subspan(i * CountSketch::kBytes, CountSketch::kBytes));
        sketch_bytes_.fetch_add(partition.sketch.memory_bytes(), std::memory_order_relaxed);
    }
}

std::size_t RowRules::memory_bytes() const {
    return sizeof *this + sketch_bytes_.load(std::memory_order_relaxed) + kPartitions * tables() * sizeof(Ledger);
}

}  // namespace gearshift
