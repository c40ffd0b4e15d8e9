// Measures what the disk of a folder gives, with the reads that a cold tier makes.
#pragma once

#include <string>

namespace gearshift {

// Random reads of 4 KiB per second from this file, read as lookups read: many at once. It takes about `seconds`. Throws
// RowIoError.
double random_read_rate(const std::string& path, double seconds);

}  // namespace gearshift
