// Counts the lookups in a row store with a cold tier, by the number of a schema's table within the store (0: unknown). A
// call sums the counts of its ids first, so that calls from several threads seldom contend here. Does not depend on the
// row table.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "row_kernels.h"
#include "row_layout.h"

namespace gearshift {

struct TableLookups {
    uint64_t lookups = 0, misses = 0;  // ids of pulls; a miss is an id that was not in memory
    uint64_t loads = 0;                // rows read from the cold tier, for a call or ahead of it
};

class LookupCounts {
public:
    // Tables are numbered from 1; 0: unknown.
    explicit LookupCounts(uint32_t tables) : counts_(std::min(tables, kMostTable) + 1) {}

    // The ids of one pull, and those of them that are not in memory. `tables_U`: the tables of the ids; null if unknown.
    void add_pull(std::size_t ids, const uint16_t* tables_U, std::span<const Item> missing) {
        if (!tables_U) return add(0, ids, missing.size());
        std::vector<uint32_t> lookups(counts_.size()), misses(counts_.size());
        for (std::size_t i = 0; i < ids; ++i) ++lookups[known(tables_U[i])];
        for (const Item& item : missing) ++misses[known(tables_U[item.position])];
        for (uint32_t table = 0; table < counts_.size(); ++table)
            if (lookups[table]) add(table, lookups[table], misses[table]);
    }

    void add_load(uint32_t table) { counts_[known(table)].loads.fetch_add(1, std::memory_order_relaxed); }

    std::vector<TableLookups> by_table() const {
        std::vector<TableLookups> counts;
        for (const OfTable& of : counts_) counts.push_back({of.lookups, of.misses, of.loads});
        return counts;
    }

private:
    struct OfTable {
        std::atomic<uint64_t> lookups{0}, misses{0}, loads{0};
    };

    uint32_t known(uint32_t table) const { return table < counts_.size() ? table : 0; }
    void add(uint32_t table, uint64_t lookups, uint64_t misses) {
        counts_[table].lookups.fetch_add(lookups, std::memory_order_relaxed);
        counts_[table].misses.fetch_add(misses, std::memory_order_relaxed);
    }

    std::vector<OfTable> counts_;
};

}  // namespace gearshift
