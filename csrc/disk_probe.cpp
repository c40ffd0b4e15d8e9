#include "disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "block_reader.h"
#include "row_file.h"
#include "row_partition.h"

namespace gearshift {
namespace {

constexpr std::size_t kReadsPerCall = 512;

struct Descriptor {
    int number;
    ~Descriptor() { ::close(number); }
};

}  // namespace

double random_read_rate(const std::string& path, double seconds) {
    using Clock = std::chrono::steady_clock;
    const Descriptor file{open_direct(path, O_RDONLY)};
    struct stat facts;
    if (::fstat(file.number, &facts) != 0) throw RowIoError(path, "cannot be read", errno);
    const auto blocks = static_cast<uint64_t>(facts.st_size) / kDiskBlock;
    if (blocks == 0) throw RowIoError(path, "cannot be read", EINVAL);
    std::vector<Extent> extents(kReadsPerCall);
    uint64_t reads = 0;
    const auto began = Clock::now();
    double passed = 0;
    while (passed < seconds) {
        for (Extent& extent : extents) extent = {file.number, mix(++reads) % blocks * kDiskBlock, kDiskBlock};
        BlockReader::of_this_thread().read(extents, [&](std::size_t, const std::byte*, int error) {
            if (error) throw RowIoError(path, "cannot be read", error > 0 ? error : EIO);
        });
        passed = std::chrono::duration<double>(Clock::now() - began).count();
    }
    return static_cast<double>(reads) / passed;
}

}  // namespace gearshift
