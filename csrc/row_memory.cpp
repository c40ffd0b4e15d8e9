#include "row_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace gearshift {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLargestMapping = std::size_t{64} << 20;
constexpr std::size_t kSmallTable = std::size_t{32} << 20;  // below this, ordinary pages

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

RowMemory::~RowMemory() {
    for (auto [base, bytes] : mappings_) munmap(base, bytes);
}

std::byte* RowMemory::allocate(std::size_t bytes) {
    bytes = round_up(bytes, kLine);
    std::lock_guard guard(lock_);
    const auto fits = [bytes](const auto& hole) { return hole.second >= bytes; };
    auto hole = std::find_if(holes_.begin(), holes_.end(), fits);
    if (hole == holes_.end()) {
        map_more(bytes);
        hole = std::find_if(holes_.begin(), holes_.end(), fits);
    }
    auto [base, size] = *hole;
    holes_.erase(hole);
    if (size > bytes) holes_.emplace(base + bytes, size - bytes);
    allocated_ += bytes;
    return base;
}

void RowMemory::release(std::byte* piece, std::size_t bytes) {
    bytes = round_up(bytes, kLine);
    std::lock_guard guard(lock_);
    allocated_ -= bytes;
    auto next = holes_.upper_bound(piece);
    if (next != holes_.end() && piece + bytes == next->first) {
        bytes += next->second;
        next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == piece) {
            before->second += bytes;
            return;
        }
    }
    holes_.emplace(piece, bytes);
}

std::size_t RowMemory::allocated() const {
    std::lock_guard guard(lock_);
    return allocated_;
}

// Mappings double with the table up to 64 MB, on a huge page's boundary.
void RowMemory::map_more(std::size_t bytes) {
    const std::size_t want = std::clamp(mapped_, std::size_t{1} << 20, kLargestMapping);
    const std::size_t size = round_up(std::max(want, bytes), kHugePage);
    void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(mapped);
    const std::size_t skip = round_up(start, kHugePage) - start;
    auto* base = static_cast<std::byte*>(mapped);
    if (skip > 0) munmap(base, skip);
    if (skip < kHugePage) munmap(base + skip + size, kHugePage - skip);
    base += skip;
#ifdef MADV_HUGEPAGE
    if (mapped_ + size > kSmallTable) madvise(base, size, MADV_HUGEPAGE);  // advice: refusal costs only speed
#endif
    mappings_.emplace_back(base, size);
    holes_.emplace(base, size);
    mapped_ += size;
}

}  // namespace gearshift
