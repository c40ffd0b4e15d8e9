#include "heap_trim.h"

#include <features.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace gearshift {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTrimAfter = std::chrono::seconds(30);
constexpr std::size_t kLeastSlack = 4 << 20;

struct Watch {
    std::mutex lock;
    Clock::time_point look_at{}, trim_at = Clock::now() + kTrimAfter;
    std::size_t needed = 0;  // resident bytes a second after the last trim; 0: not known yet
};

Watch& watch() {
    static Watch one;
    return one;
}

std::size_t resident_bytes() {
    unsigned long all = 0, resident = 0;
    if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%lu %lu", &all, &resident) != 2) resident = 0;
        std::fclose(file);
    }
    return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void trim_heap_if_grown([[maybe_unused]] std::size_t slack) {
#ifdef __GLIBC__
    std::unique_lock only(watch().lock, std::try_to_lock);
    if (!only || Clock::now() < watch().look_at) return;
    const std::size_t now = resident_bytes();
    const bool grown = watch().needed && now > watch().needed + std::max(slack, kLeastSlack);
    if (grown || Clock::now() >= watch().trim_at) {
        ::malloc_trim(0);
        watch().needed = 0;
        watch().trim_at = Clock::now() + kTrimAfter;
    } else if (watch().needed == 0 || now < watch().needed) {
        watch().needed = now;
    }
    watch().look_at = Clock::now() + std::chrono::seconds(kHeapLookSeconds);
#endif
}

}  // namespace gearshift
