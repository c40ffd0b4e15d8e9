#include "placement.h"

#include <array>
#include <vector>

namespace gearshift {

void place(std::span<const int64_t> ids, uint32_t shards, uint32_t* order, uint32_t* begins) {
    std::array<uint32_t, kPartitions + 1> next{};
    std::vector<uint8_t> shard(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        shard[i] = static_cast<uint8_t>(shard_of(ids[i], shards));
        ++next[shard[i] + 1u];
    }
    for (uint32_t s = 0; s < shards; ++s) next[s + 1] += next[s];
    for (uint32_t s = 0; s <= shards; ++s) begins[s] = next[s];
    for (std::size_t i = 0; i < ids.size(); ++i) order[next[shard[i]]++] = static_cast<uint32_t>(i);
}

}  // namespace gearshift
