// Reads many pieces of files concurrently and delivers each piece when it arrives.
//
// With io_uring, 128 reads are in flight from one thread. Where the kernel refuses it, threads call pread instead: the same
// rate for more CPU time. One object per thread. It knows nothing about rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "aligned_bytes.h"

namespace gearshift {

struct Extent {
    int descriptor;
    uint64_t offset;  // offset and bytes are multiples of 4 KiB
    uint32_t bytes;
};

class IoRing;

class BlockReader {
public:
    BlockReader();
    ~BlockReader();
    static BlockReader& of_this_thread();
    static void allow_io_uring(bool allowed);  // affects readers created later; for tests of the fallback

    // Calls arrived(i, bytes, error) once per extent, in any order, one call at a time; the fallback calls it on threads of
    // its own. `error` is 0, an errno, or -1 if the file
    // ends early. The bytes are valid during the call only.
    using Arrived = std::function<void(std::size_t, const std::byte*, int)>;
    void read(std::span<const Extent> extents, const Arrived& arrived);

    bool uses_io_uring() const { return ring_ != nullptr; }

private:
    void give_up_ring();
    void read_with_ring(std::span<const Extent> extents, const Arrived& arrived);
    void read_with_threads(std::span<const Extent> extents, const Arrived& arrived);
    std::byte* slot(std::size_t i) { return slots_.data() + i * slot_bytes_; }
    void make_slots(std::span<const Extent> extents, std::size_t most);

    std::unique_ptr<IoRing> ring_;
    AlignedBytes slots_;
    std::size_t slot_bytes_ = 0;
};

}  // namespace gearshift
