// The worker's side of a pull and a push: the unique ids of a batch, and the mapping back to their occurrences.
//
// Unique ids are in the order of their first occurrence. `expand` copies each id's row to its occurrences; `sum` adds up
// the gradients of an id's occurrences in input order, in float32, with one thread per id: the same bits for any number of
// threads. Buffers are reused for the next batch. This class does not depend on stores or features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gearshift {

struct OccurrenceBuffers {
    std::vector<int64_t> unique;
    std::vector<uint32_t> counts;
    std::vector<uint32_t> first;    // unique -> its first occurrence
    std::vector<uint32_t> inverse;  // occurrence -> unique
    std::vector<uint32_t> begins;   // unique -> its first position in `order`; one more at the end
    std::vector<uint32_t> order;    // occurrences grouped by unique id, in input order
    std::vector<uint32_t> table;    // for the search: unique + 1, or 0
};

class Occurrences {
public:
    explicit Occurrences(std::span<const int64_t> ids);
    ~Occurrences();
    Occurrences(const Occurrences&) = delete;
    Occurrences& operator=(const Occurrences&) = delete;

    std::span<const int64_t> unique() const { return {buffers_->unique.data(), unique_}; }
    std::span<const uint32_t> counts() const { return {buffers_->counts.data(), unique_}; }
    std::span<const uint32_t> first() const { return {buffers_->first.data(), unique_}; }
    std::size_t size() const { return occurrences_; }

    // out_NP = columns [begin, begin + columns) of rows_UW.
    void expand(const float* rows_UW, uint32_t width, uint32_t begin, uint32_t columns, float* out_NP,
                uint32_t threads) const;
    // Columns [begin, begin + columns) of out_UW = sums of grads_NP. Returns whether all are finite, even when squared.
    bool sum(const float* grads_NP, uint32_t width, uint32_t begin, uint32_t columns, float* out_UW,
             uint32_t threads) const;

private:
    void find_unique(std::span<const int64_t> ids);
    void group_occurrences();

    std::unique_ptr<OccurrenceBuffers> buffers_;
    std::size_t occurrences_ = 0, unique_ = 0;
};

}  // namespace gearshift
