// Runs the pieces of one call on several cores. A few threads are started on first use and kept; the caller takes pieces
// too and waits only for pieces that a thread has begun, so a busy (or, after a fork, absent) crew costs speed and nothing else.
// Which thread runs a piece is left open: pieces must not depend on it. More pieces than threads even out what the system's
// scheduling makes uneven.
#pragma once

#include <cstdint>
#include <functional>

namespace gearshift {

// piece(i) for each i in [0, count), at most `threads` at a time; returns when all are done; rethrows the first exception.
void run_pieces(uint32_t count, uint32_t threads, const std::function<void(uint32_t)>& piece);

}  // namespace gearshift
