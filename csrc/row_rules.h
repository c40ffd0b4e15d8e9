// Which ids get rows and how long rows live, table by table.
//
// Admission. An id of a table with `min_count` gets a row when it has occurred so often; with `admit`, each occurrence
// gives it one with that probability, which depends on (seed, id, step) only. Occurrences count when they are pushed.
//
// Expiry. A row is over if it was last pushed before its table's horizon, a step, and, where the rule says so, has few
// occurrences and small weights. A row that is over does not exist, whatever memory or file still holds it: this is
// a question of its own values and the horizon, so nothing depends on when it is removed, or on a memory budget. It can
// only come back as a new row, because a push sets its last step.
//
// Marks are steps. A horizon is always one of them, so the rows that expire with it can be counted without looking for
// them: each partition counts its rows by the newest mark at their last push.
//
// A table with rules makes rows by pushes alone; a pull shows an id without a row the values that it would start with.
// What is said about a partition here is guarded by the partition's lock; marks change while no push is under way.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "count_sketch.h"
#include "row_layout.h"
#include "row_partition.h"

namespace gearshift {

struct RowRule {
    uint32_t min_count = 0;  // occurrences that an id needs for a row
    double admit = 1.0;      // the probability that an occurrence gives it one
    bool expires = false;
    uint32_t touches_below = std::numeric_limits<uint32_t>::max();  // only rows with fewer occurrences expire
    double norm_below = std::numeric_limits<double>::infinity();    // only rows whose first part is shorter expire

    bool gated() const { return min_count > 1 || admit < 1.0; }
    // Whether a row is over; `weights` of its first part, which is `width` wide.
    bool ends(const RowMeta& meta, const float* weights, uint32_t width, uint32_t horizon) const;
};

struct RuleCounts {  // of a table
    uint64_t admitted = 0, refused_occurrences = 0, refused_gradients = 0, expired = 0;
};

// What a checkpoint keeps. `counts` has those of all tables for each partition named, `counters` its sketch, if any has one.
struct RuleState {
    std::vector<uint32_t> marks, horizons, partitions;
    std::vector<RuleCounts> counts;
    std::vector<uint8_t> counters;
};

class RowRules {
public:
    // `by_table`: the rule of each table's number; that of 0 is for rows of unknown tables. `width`: of the first part.
    RowRules(std::vector<RowRule> by_table, uint64_t seed, uint32_t width);

    uint32_t tables() const { return static_cast<uint32_t>(rules_.size()); }
    bool any_expires() const { return any_expires_; }
    const std::vector<RowRule>& by_table() const { return rules_; }
    std::vector<uint32_t> horizons() const;

    bool is_over(const RowMeta& meta, const float* weights) const;
    bool is_over(const RowMeta& meta, const float* weights, std::span<const uint32_t> horizons) const;

    // Whether an id without a row gets one in this push.
    bool admits(uint32_t partition, const CountedId& id, uint32_t table, uint32_t step);
    void end_push();  // adds what was counted to the sketches; takes their locks

    void count_row(uint32_t partition, const RowMeta& meta, const float* weights);  // it exists now
    void forget_row(uint32_t partition, const RowMeta& meta, const float* weights);  // as it was when it was counted
    uint64_t rows() const;

    // No push is under way. Each horizon goes forward to the newest mark that is not beyond it. Returns the number of rows
    // that are over now and were not.
    uint64_t move_horizons(uint32_t mark, std::span<const uint32_t> horizons);

    std::vector<RuleCounts> counts() const;     // by table
    std::vector<uint64_t> rows_by_table() const;
    RuleState state() const;                    // no push is under way
    void restore(const RuleState& state);       // before any row exists
    std::size_t memory_bytes() const;

private:
    struct Ledger {  // of one table in one partition
        uint64_t rows = 0;
        RuleCounts counts;
        std::vector<uint32_t> ending;  // rows that will expire, by the mark of their last push
    };
    struct OfPartition {
        mutable std::mutex lock;  // of the sketch and what is to be added to it
        std::vector<Ledger> tables;
        CountSketch sketch;
        std::vector<CountedId> counted;  // by pushes that have not ended
    };

    uint32_t known(uint32_t table) const { return table < tables() ? table : 0; }
    std::size_t mark_of(uint32_t step) const;
    void drop_old_marks();

    const std::vector<RowRule> rules_;
    const uint64_t seed_;
    const uint32_t width_;
    bool any_expires_ = false;
    std::vector<std::atomic<uint32_t>> horizons_;
    std::vector<uint32_t> marks_{0};
    std::array<OfPartition, kPartitions> partitions_;
    std::atomic<uint64_t> rows_{0};
    std::atomic<std::size_t> sketch_bytes_{0};
};

}  // namespace gearshift
