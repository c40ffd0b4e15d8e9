#include "count_sketch.h"

#include <algorithm>
#include <stdexcept>

#include "row_partition.h"

namespace gearshift {
namespace {

constexpr uint32_t kLineBits = 14, kMostUsed = CountSketch::kCounters / 4;
static_assert(CountSketch::kCounters == 1u << kLineBits);

}  // namespace

// The partition follows from the top bits of mix(id), so all ids here share them: another hash is needed.
CountSketch::Places CountSketch::places_of(int64_t id) {
    uint64_t hash = mix(static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15ULL + 0x7f4a7c15f39cc060ULL);
    Places places;
    for (uint32_t line = 0; line < kLines; ++line, hash >>= kLineBits)
        places[line] = line << kLineBits | static_cast<uint32_t>(hash & (kCounters - 1));
    return places;
}

uint32_t CountSketch::count(int64_t id) const {
    if (counters_.empty()) return 0;
    uint32_t least = kMostCount;
    for (uint32_t place : places_of(id)) least = std::min<uint32_t>(least, counters_[place]);
    return least;
}

void CountSketch::add(std::span<const CountedId> of_one_push) {
    if (of_one_push.empty()) return;
    if (counters_.empty()) counters_.resize(kBytes);
    std::vector<uint32_t> counts;
    counts.reserve(of_one_push.size());
    for (const CountedId& each : of_one_push)
        counts.push_back(std::min(kMostCount, count(each.id) + std::min(each.count, kMostCount)));
    for (std::size_t i = 0; i < counts.size(); ++i)
        for (uint32_t place : places_of(of_one_push[i].id)) raise(place, counts[i]);
    while (*std::max_element(used_.begin(), used_.end()) > kMostUsed) halve();
}

void CountSketch::raise(uint32_t place, uint32_t count) {
    uint8_t& counter = counters_[place];
    used_[place >> kLineBits] += counter == 0 && count > 0;
    counter = static_cast<uint8_t>(std::max<uint32_t>(counter, count));
}

void CountSketch::halve() {
    for (uint8_t& counter : counters_) counter /= 2;
    for (uint32_t line = 0; line < kLines; ++line) {
        const auto begin = counters_.begin() + line * kCounters;
        used_[line] = static_cast<uint32_t>(kCounters - std::count(begin, begin + kCounters, uint8_t{0}));
    }
}

void CountSketch::restore(std::span<const uint8_t> counters) {
    if (counters.size() != kBytes) throw std::invalid_argument("the counters of a sketch have another number");
    counters_.assign(counters.begin(), counters.end());
    for (uint32_t line = 0; line < kLines; ++line) {
        const auto begin = counters_.begin() + line * kCounters;
        used_[line] = static_cast<uint32_t>(kCounters - std::count(begin, begin + kCounters, uint8_t{0}));
    }
}

}  // namespace gearshift
