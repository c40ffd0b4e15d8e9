// pread until all bytes are there.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace gearshift {

// 0, an errno, or -1 if the file ends early.
inline int read_whole(int descriptor, std::byte* to, std::size_t bytes, uint64_t offset) {
    while (bytes) {
        const ssize_t got = ::pread(descriptor, to, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : -1;
        to += got, offset += static_cast<uint64_t>(got), bytes -= static_cast<std::size_t>(got);
    }
    return 0;
}

}  // namespace gearshift
