#include "disk_schedule.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace gearshift {
namespace {

constexpr int kNiceness = 10;

std::atomic<int> lookups{0};
std::mutex turn;

}  // namespace

LookupOnDisk::LookupOnDisk() { lookups.fetch_add(1, std::memory_order_relaxed); }
LookupOnDisk::~LookupOnDisk() { lookups.fetch_sub(1, std::memory_order_relaxed); }

void work_in_background() {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
}

void in_background_turn(const std::function<void()>& request) {
    if (lookups.load(std::memory_order_relaxed) == 0) return request();
    std::lock_guard one(turn);
    request();
}

}  // namespace gearshift
