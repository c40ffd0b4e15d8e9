// Reads many pieces of files concurrently and delivers each piece when it arrives.
//
// With io_uring, 128 reads are in flight from one thread. Where the kernel refuses it, threads call pread instead: the same
// rate for more CPU time. A reader has memory for the pieces in flight, so there are only a few readers; a caller waits if
// all are in use. A reader knows nothing about rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "aligned_bytes.h"

namespace gearshift {

constexpr std::size_t kMostReaders = 3;
constexpr std::size_t kMostBytesInFlight = 4 << 20;  // per reader

struct Extent {
    int descriptor;
    uint64_t offset;  // offset and bytes are multiples of 4 KiB
    uint32_t bytes;
};

// How deep the disk's queue was: the mean is in_flight / waits.
struct QueueDepth {
    uint64_t waits = 0, in_flight = 0;
};

class IoRing;

class BlockReader {
public:
    BlockReader();
    ~BlockReader();
    static void allow_io_uring(bool allowed);  // affects reads that begin later; for tests of the fallback
    unsigned made_under() const { return made_under_; }  // changes with the setting

    // Calls arrived(i, bytes, error) once per extent, in any order, one call at a time; the fallback calls it on threads of
    // its own. `error` is 0, an errno, or -1 if the file ends early. The bytes are valid during the call only. At most
    // `most_bytes` are in flight, but always one extent.
    using Arrived = std::function<void(std::size_t, const std::byte*, int)>;
    QueueDepth read(std::span<const Extent> extents, std::size_t most_bytes, const Arrived& arrived);

private:
    void give_up_ring();
    QueueDepth read_with_ring(std::span<const Extent> extents, const Arrived& arrived);
    QueueDepth read_with_threads(std::span<const Extent> extents, std::size_t slot_bytes, const Arrived& arrived);
    void make_room(std::size_t bytes);

    unsigned made_under_;
    std::unique_ptr<IoRing> ring_;
    AlignedBytes memory_;  // of the extents in flight
};

// The same with one of the process's readers.
QueueDepth read_extents(std::span<const Extent> extents, std::size_t most_bytes, const BlockReader::Arrived& arrived);

}  // namespace gearshift
