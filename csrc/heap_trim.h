// Returns memory that was freed, but that malloc keeps, to the system.
//
// The tensors of a training step have many sizes. What malloc keeps between them grows for minutes, beyond what a budget for
// rows could allow. Always returning them at once would cost a tenth of the step, in page faults. So the process's resident
// memory is watched: a second after a trim it is what the steps need, and when it has grown much beyond that, or half a
// minute has passed, it is time for the next.
#pragma once

#include <cstddef>

namespace gearshift {

constexpr int kHeapLookSeconds = 1;

// Looks at most once per second, whoever calls. `slack`: the growth that is accepted.
void trim_heap_if_grown(std::size_t slack);

}  // namespace gearshift
