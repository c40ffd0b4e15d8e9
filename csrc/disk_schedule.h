// Who may use the disk: lookups, for which training waits, come before background work (merging, writing, scanning).
//
// A lookup only registers. Background work asks for a turn before each request of at most 256 KiB: while there are
// lookups, this process has at most one such request in flight, so a lookup meets at most one large request. Without
// lookups nobody waits. More requests in flight cost lookups most of their rate; fewer, with pauses between them, let rows
// leave memory too slowly when lookups never end, and then lookups wait for that (docs/adr/0022).
#pragma once

#include <cstddef>
#include <functional>

namespace gearshift {

constexpr std::size_t kBackgroundBytes = 256 << 10;  // of one request

class LookupOnDisk {
public:
    LookupOnDisk();
    ~LookupOnDisk();
    LookupOnDisk(const LookupOnDisk&) = delete;
    LookupOnDisk& operator=(const LookupOnDisk&) = delete;
};

void work_in_background();  // this thread also leaves the processors to others
void in_background_turn(const std::function<void()>& request);

}  // namespace gearshift
