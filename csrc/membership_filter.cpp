#include "membership_filter.h"

#include "row_partition.h"

namespace gearshift {
namespace {

constexpr double kFilterBits = 10;  // per row
constexpr uint32_t kSalts[8] = {0x47b6137bU, 0x44974d91U, 0x8824ad5bU, 0xa2b7289dU,
                                0x705495c7U, 0x2df1424bU, 0x9efc4947U, 0x5c6bfb31U};

}  // namespace

// The split-block filter of the Parquet format: each key sets one bit in each of the eight words of one 32-byte block.
MembershipFilter::MembershipFilter(uint64_t rows) {
    const auto blocks = static_cast<std::size_t>(static_cast<double>(rows) * kFilterBits / (32 * kLanes)) + 1;
    words_.resize(blocks * kLanes);
}

// The key's top bits are the same in a file of few partitions.
uint64_t MembershipFilter::hash_of(uint64_t key) { return mix(key ^ 0x5851f42d4c957f2dULL); }

void MembershipFilter::add(uint64_t key) {
    const uint64_t hash = hash_of(key);
    uint32_t* block = words_.data() + first_word(hash, words_.size());
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        block[lane] |= uint32_t{1} << (static_cast<uint32_t>(hash) * kSalts[lane] >> 27);
}

bool MembershipFilter::may_contain(std::span<const uint32_t> words, uint64_t key) {
    const uint64_t hash = hash_of(key);
    const uint32_t* block = words.data() + first_word(hash, words.size());
    bool all = true;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        all &= block[lane] >> (static_cast<uint32_t>(hash) * kSalts[lane] >> 27) & 1;
    return all;
}

}  // namespace gearshift
