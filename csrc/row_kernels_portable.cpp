// The row kernels for any machine, and the selection of faster ones.
#pragma GCC diagnostic ignored "-Wpsabi"  // eight-lane values stay inside this file
#define GEARSHIFT_KERNELS portable
#include "row_kernels_body.h"

namespace gearshift {

constinit const RowKernels kPortableKernels{portable::pull, portable::push, portable::first_bad};

const RowKernels& best_row_kernels() {
#if defined(__x86_64__)
    if (kAvx2Kernels && __builtin_cpu_supports("avx2")) return *kAvx2Kernels;
#endif
    return kPortableKernels;
}

}  // namespace gearshift
