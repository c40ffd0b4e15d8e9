#include "disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "row_file.h"
#include "row_partition.h"

namespace gearshift {
namespace {

constexpr std::size_t kReadsPerCall = 512;
constexpr uint32_t kExtent = 64 << 10, kLongestExtent = 256 << 10, kLongestGap = 32 << 10;
constexpr double kWorthLonger = 1.25;  // of the bytes per second, since longer extents hold more memory
constexpr double kSecondsPerRate = 0.02;

struct Descriptor {
    int number;
    ~Descriptor() { ::close(number); }
};

}  // namespace

double random_read_rate(const std::string& path, double seconds, uint32_t bytes, std::size_t most_in_flight) {
    using Clock = std::chrono::steady_clock;
    const Descriptor file{open_direct(path, O_RDONLY)};
    struct stat facts;
    if (::fstat(file.number, &facts) != 0) throw RowIoError(path, "cannot be read", errno);
    const auto places = static_cast<uint64_t>(facts.st_size) / bytes;
    if (places == 0) throw RowIoError(path, "cannot be read", EINVAL);
    std::vector<Extent> extents(std::max<std::size_t>(kReadsPerCall * kDiskBlock / bytes, 1));
    uint64_t reads = 0;
    const auto began = Clock::now();
    double passed = 0;
    while (passed < seconds) {
        for (Extent& extent : extents) extent = {file.number, mix(++reads) % places * bytes, bytes};
        read_extents(extents, most_in_flight, [&](std::size_t, const std::byte*, int error) {
            if (error) throw RowIoError(path, "cannot be read", error > 0 ? error : EIO);
        });
        passed = std::chrono::duration<double>(Clock::now() - began).count();
    }
    return static_cast<double>(reads) / passed;
}

ReadPlan plan_from_rates(double block_reads, double extent_reads, double longest_reads) {
    const bool longer = longest_reads * kLongestExtent > kWorthLonger * extent_reads * kExtent;
    const double per_byte = (1 / extent_reads - 1 / block_reads) / (kExtent - kDiskBlock);
    const double per_read = 1 / block_reads - per_byte * kDiskBlock;
    const double gap = per_byte > 0 ? per_read / per_byte : kLongestGap;
    const auto blocks = static_cast<uint32_t>(std::clamp(gap, 0.0, double{kLongestGap}) / kDiskBlock);
    return {blocks * static_cast<uint32_t>(kDiskBlock), longer ? kLongestExtent : kExtent};
}

ReadPlan measured_plan(const std::string& path, std::size_t most_in_flight) {
    const auto rate = [&](uint32_t bytes) { return random_read_rate(path, kSecondsPerRate, bytes, most_in_flight); };
    return plan_from_rates(rate(kDiskBlock), rate(kExtent), rate(kLongestExtent));
}

}  // namespace gearshift
