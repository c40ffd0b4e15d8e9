// Measures what a disk gives, with the reads that a cold tier makes, and follows from it how to read.
#pragma once

#include <cstdint>
#include <string>

#include "block_reader.h"

namespace gearshift {

// Random reads of this size per second from this file, read as lookups read: many at once. It takes about `seconds`. Throws
// RowIoError.
double random_read_rate(const std::string& path, double seconds, uint32_t bytes = 4096,
                        std::size_t most_in_flight = kMostBytesInFlight);

// How to read many blocks that are close together. The defaults suit an SSD that was not measured.
struct ReadPlan {
    uint32_t gap_bytes = 8 << 10;      // that are read in vain, because another read would take longer
    uint32_t extent_bytes = 64 << 10;  // of one read; longer ones are not faster
};

// The time of a read of n bytes is taken to be a + b n.
ReadPlan plan_from_rates(double block_reads, double extent_reads, double longest_reads);  // per second
// From a file of some MiB, with as many bytes in flight as lookups may have; takes 60 ms.
ReadPlan measured_plan(const std::string& path, std::size_t most_in_flight);

}  // namespace gearshift
