// Which keys a row file may have: about 10 bits per key, and about 1 in 80 absent keys seems present. It is stored in files,
// so it must never change. It knows nothing about rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace gearshift {

class MembershipFilter {
public:
    explicit MembershipFilter(uint64_t rows);
    explicit MembershipFilter(std::vector<uint32_t>&& words) : words_(std::move(words)) {}

    void add(uint64_t key);
    bool may_contain(uint64_t key) const { return may_contain(words_, key); }
    static bool may_contain(std::span<const uint32_t> words, uint64_t key);
    static bool can_have(uint64_t words) { return words > 0 && words % kLanes == 0; }
    void prefetch(uint64_t key) const { __builtin_prefetch(words_.data() + first_word(hash_of(key), words_.size())); }
    const std::vector<uint32_t>& words() const { return words_; }

private:
    static constexpr uint32_t kLanes = 8;  // words of a block, one bit is set in each
    static uint64_t hash_of(uint64_t key);
    static std::size_t first_word(uint64_t hash, std::size_t words) {
        return (hash >> 32) * (words / kLanes) / (uint64_t{1} << 32) * kLanes;
    }
    std::vector<uint32_t> words_;
};

}  // namespace gearshift
