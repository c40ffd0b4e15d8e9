// How often ids without a row have occurred, in a fixed amount of memory: a count-min sketch with conservative update.
//
//   4 lines of 16,384 counters of 8 bits; an id has one counter in each line, and its count is the smallest of them
//
// It never counts too little within its memory of the past, so an id is admitted at its n-th occurrence or earlier. It
// counts too much only if other ids share all four counters. Once a quarter of a line is in use all counters are halved,
// which forgets the ids that occurred longest ago and least often. So an id that has not been seen before is taken for
// one that has with a probability of at most (1/4)^4 = .4 %, however many ids there are.
//
// All counts of one push are estimated before any of them is added, and adding takes the larger value. The result
// therefore does not depend on the order of a push's ids, which is another one with a cold tier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gearshift {

struct CountedId {
    int64_t id;
    uint32_t count;
};

class CountSketch {
public:
    static constexpr uint32_t kLines = 4, kCounters = 1 << 14, kMostCount = 255;
    static constexpr std::size_t kBytes = std::size_t{kLines} * kCounters;

    uint32_t count(int64_t id) const;                   // so far, or more
    void add(std::span<const CountedId> of_one_push);  // each id once

    bool empty() const { return counters_.empty(); }  // it takes no memory until it counts
    std::span<const uint8_t> counters() const { return counters_; }
    void restore(std::span<const uint8_t> counters);
    std::size_t memory_bytes() const { return counters_.capacity(); }

private:
    using Places = std::array<uint32_t, kLines>;
    static Places places_of(int64_t id);
    void raise(uint32_t place, uint32_t count);
    void halve();

    std::vector<uint8_t> counters_;
    std::array<uint32_t, kLines> used_{};  // counters of each line that are not 0
};

}  // namespace gearshift
