// The shard of a row: contiguous runs of the table's 256 partitions, so sharded and unsharded tables always agree.
#pragma once

#include <cstdint>
#include <span>

#include "row_partition.h"

namespace gearshift {

inline uint32_t shard_of(int64_t id, uint32_t shards) {
    return partition_of(mix(static_cast<uint64_t>(id))) * shards / kPartitions;
}

// `order` lists positions in `ids` grouped by shard, each group in input order; group s is [begins[s], begins[s + 1]).
void place(std::span<const int64_t> ids, uint32_t shards, uint32_t* order, uint32_t* begins);

}  // namespace gearshift
