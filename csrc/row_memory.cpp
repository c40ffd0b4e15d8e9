#include "row_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#ifdef __SANITIZE_ADDRESS__  // access to a hole is an error there, as with malloc
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)0)
#endif

namespace gearshift {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLargestMapping = std::size_t{64} << 20;
constexpr std::size_t kSmallTable = std::size_t{32} << 20;  // below this, ordinary pages

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

RowMemory::~RowMemory() {
    for (auto [base, bytes] : mappings_) {
        ASAN_UNPOISON_MEMORY_REGION(base, bytes);
        munmap(base, bytes);
    }
}

std::byte* RowMemory::allocate(std::size_t bytes) {
    bytes = round_up(bytes, kLine);
    std::lock_guard guard(lock_);
    auto fits = holes_by_size_.lower_bound({bytes, nullptr});
    if (fits == holes_by_size_.end()) {
        map_more(bytes);
        fits = holes_by_size_.lower_bound({bytes, nullptr});
    }
    const auto [size, base] = *fits;
    remove_hole(base, size);
    if (size > bytes) add_hole(base + bytes, size - bytes);
    allocated_ += bytes;
    ASAN_UNPOISON_MEMORY_REGION(base, bytes);
    return base;
}

void RowMemory::release(std::byte* piece, std::size_t bytes) {
    bytes = round_up(bytes, kLine);
    std::lock_guard guard(lock_);
    ASAN_POISON_MEMORY_REGION(piece, bytes);
    allocated_ -= bytes;
    auto next = holes_.upper_bound(piece);
    if (next != holes_.begin()) {
        const auto [before, size] = *std::prev(next);
        if (before + size == piece) {
            remove_hole(before, size);
            piece = before;
            bytes += size;
        }
    }
    if (next != holes_.end() && piece + bytes == next->first) {
        const auto [after, size] = *next;
        remove_hole(after, size);
        bytes += size;
    }
    add_hole(piece, bytes);
}

void RowMemory::release_pages(std::byte* piece, std::size_t bytes) {
    constexpr std::uintptr_t page = 4096;
    const auto begin = round_up(reinterpret_cast<std::uintptr_t>(piece), page);
    const auto end = (reinterpret_cast<std::uintptr_t>(piece) + bytes) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    release(piece, bytes);
}

void RowMemory::add_hole(std::byte* base, std::size_t bytes) {
    holes_.emplace(base, bytes);
    holes_by_size_.emplace(bytes, base);
}

void RowMemory::remove_hole(std::byte* base, std::size_t bytes) {
    holes_.erase(base);
    holes_by_size_.erase({bytes, base});
}

std::size_t RowMemory::allocated() const {
    std::lock_guard guard(lock_);
    return allocated_;
}

// Mappings double with the table up to 64 MB, aligned to a huge page.
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
    if (mapped_ + size > kSmallTable) madvise(base, size, MADV_HUGEPAGE);  // only advice: refusal costs speed
#endif
    ASAN_POISON_MEMORY_REGION(base, size);
    mappings_.emplace_back(base, size);
    add_hole(base, size);
    mapped_ += size;
}

}  // namespace gearshift
