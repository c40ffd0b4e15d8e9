// Runs the pieces of one call on several cores. A few threads are started on first use and kept. The caller runs pieces too
// and waits only for pieces that a thread has begun, so busy (or, after a fork, missing) threads only cost speed. Pieces
// must not depend on which thread runs them. More pieces than threads even out irregular scheduling.
#pragma once

#include <cstdint>
#include <functional>

namespace gearshift {

// piece(i) for each i in [0, count), at most `threads` at a time; returns when all are done; rethrows the first exception.
void run_pieces(uint32_t count, uint32_t threads, const std::function<void(uint32_t)>& piece);

}  // namespace gearshift
