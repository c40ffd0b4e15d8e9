// Buffers for direct I/O, and for work that must not linger in malloc's arenas after it is done.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

namespace gearshift {

constexpr std::size_t kDiskBlock = 4096;
constexpr std::size_t kOwnPages = 64 << 10;  // from this size on, memory comes from the system and returns to it at once

inline std::size_t in_disk_blocks(std::size_t bytes) { return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock; }

// Whole pages, aligned to 4 KiB. Zero if they are mapped.
inline std::byte* allocate_pages(std::size_t bytes) {
    if (bytes < kOwnPages) {
        void* small = std::aligned_alloc(kDiskBlock, bytes);
        if (!small) throw std::bad_alloc();
        return static_cast<std::byte*>(small);
    }
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(mapped);
}

inline void release_pages(void* pages, std::size_t bytes) {
    if (bytes < kOwnPages)
        std::free(pages);
    else
        ::munmap(pages, bytes);
}

// A buffer aligned to 4 KiB, as direct I/O requires. Its contents are not set.
class AlignedBytes {
public:
    AlignedBytes() = default;
    explicit AlignedBytes(std::size_t bytes) : size_(in_disk_blocks(bytes)) {
        if (size_) bytes_ = allocate_pages(size_);
    }
    ~AlignedBytes() {
        if (bytes_) release_pages(bytes_, size_);
    }
    AlignedBytes(AlignedBytes&& other) noexcept
        : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    AlignedBytes& operator=(AlignedBytes&& other) noexcept {
        std::swap(bytes_, other.bytes_);
        std::swap(size_, other.size_);
        return *this;
    }
    std::byte* data() { return bytes_; }
    const std::byte* data() const { return bytes_; }
    std::size_t size() const { return size_; }

private:
    std::byte* bytes_ = nullptr;
    std::size_t size_ = 0;
};

template <class T>
struct PageAllocator {
    using value_type = T;
    PageAllocator() = default;
    template <class U>
    PageAllocator(const PageAllocator<U>&) {}
    T* allocate(std::size_t count) { return reinterpret_cast<T*>(allocate_pages(in_disk_blocks(count * sizeof(T)))); }
    void deallocate(T* pages, std::size_t count) { release_pages(pages, in_disk_blocks(count * sizeof(T))); }
    bool operator==(const PageAllocator&) const { return true; }
};

// A vector of many elements that lives briefly. Not for small ones: each takes whole pages.
template <class T>
using PageVector = std::vector<T, PageAllocator<T>>;

}  // namespace gearshift
