// The row kernels for machines with AVX2, chosen at run time. Shared headers are included before the switch to AVX2, so
// that no inline function of another file is compiled for it.
#include "row_birth.h"
#include "row_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC target("avx2,bmi,bmi2,prfchw")
#define GEARSHIFT_KERNELS avx2
#define GEARSHIFT_AVX2  // g++ does not set __AVX2__ for the pragma above
#include "row_kernels_body.h"

namespace gearshift {
namespace {
constinit const RowKernels kernels{avx2::pull, avx2::push, avx2::first_bad};
}
constinit const RowKernels* const kAvx2Kernels = &kernels;
}  // namespace gearshift

#else

namespace gearshift {
constinit const RowKernels* const kAvx2Kernels = nullptr;
}

#endif
