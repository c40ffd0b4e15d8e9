// A buffer aligned to 4 KiB, as direct I/O requires.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace gearshift {

constexpr std::size_t kDiskBlock = 4096;

class AlignedBytes {
public:
    AlignedBytes() = default;
    explicit AlignedBytes(std::size_t bytes) : size_((bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock) {
        if (size_ == 0) return;
        bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, size_)));
        if (!bytes_) throw std::bad_alloc();
    }
    std::byte* data() { return bytes_.get(); }
    const std::byte* data() const { return bytes_.get(); }
    std::size_t size() const { return size_; }

private:
    struct Free {
        void operator()(std::byte* bytes) const { std::free(bytes); }
    };
    std::unique_ptr<std::byte, Free> bytes_;
    std::size_t size_ = 0;
};

}  // namespace gearshift
