// Elementary functions and random bits that give the same bits on every machine.
//
// Built only from IEEE additions, multiplications, divisions and square roots in a fixed order: no libm (its last digit
// differs between versions), no fused multiply-add (the project compiles with -ffp-contract=off), no state. Accurate to
// about 1e-15 (`normal`: 1e-9), far more than a synthetic log needs. Arguments must be finite; NaN is not handled. `exp`,
// `log`, `sigmoid` and `normal_inside` have no branches and no integer conversions, so a compiler can vectorise a loop
// over them, with the same bits.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

// Compiled twice; the wide version is chosen at program start. Both give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GEARSHIFT_VECTOR_KERNEL __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define GEARSHIFT_VECTOR_KERNEL
#endif

namespace gearshift::portable {

constexpr double kPi = 3.14159265358979323846;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): 64 bits in, 64 well-mixed bits out, one to one.
inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

inline uint64_t mix(uint64_t key, uint64_t x) { return mix(mix(key + kGolden) + x * kGolden); }

inline double uniform(uint64_t bits) {  // in (0, 1): 52 bits and a half
    return std::bit_cast<double>((bits >> 12) | 0x3FF0000000000000ULL) - (1.0 - 0x1p-53);
}

inline uint32_t below(uint32_t size, uint64_t bits) {  // in [0, size), from the upper half of the bits
    return static_cast<uint32_t>(((bits >> 32) * size) >> 32);
}

constexpr double kWhole = 0x1.8p52;  // x + kWhole is x rounded to an integer, which is in the low bits

inline double nearest(double x) { return (x + kWhole) - kWhole; }  // |x| < 2^51

// 1/n! for the Taylor series; the compiler divides with correct rounding.
template <int kTerms>
constexpr std::array<double, kTerms> inverse_factorials() {
    std::array<double, kTerms> inverse{};
    double factorial = 1.0;
    for (int n = 0; n < kTerms; ++n) inverse[n] = 1.0 / (factorial *= n ? n : 1);
    return inverse;
}

inline double exp(double x) {  // |x| < 700
    const double shifted = x * 1.44269504088896340736 + kWhole, k = shifted - kWhole;
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;  // |r| <= ln(2) / 2
    constexpr auto c = inverse_factorials<14>();
    double sum = c[13];
    for (int n = 12; n >= 0; --n) sum = sum * r + c[n];
    return sum * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

inline double log(double x) {  // x > 0 and normal
    constexpr uint64_t kOne = 0x3FF0000000000000ULL, kSqrtHalf = 0x3FE6A09E667F3BCDULL;
    const uint64_t bits = std::bit_cast<uint64_t>(x) + (kOne - kSqrtHalf);
    const double exponent = std::bit_cast<double>((bits >> 52) | 0x4330000000000000ULL) - (0x1p52 + 1023.0);
    const double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) + kSqrtHalf);  // in [sqrt(1/2), sqrt(2))
    const double s = (m - 1.0) / (m + 1.0), q = s * s;  // log m = 2 artanh s, |s| <= .172
    double sum = 0.0;
    for (int n = 21; n >= 1; n -= 2) sum = sum * q + 1.0 / n;
    return 2.0 * s * sum + exponent * 0.693147180559945309417;
}

// sin(2 pi turns); turns of any size.
inline double sin_turns(double turns) {
    double t = turns - nearest(turns);  // [-.5, .5]
    if (t > 0.25) t = 0.5 - t;
    if (t < -0.25) t = -0.5 - t;
    const double x = 2.0 * kPi * t, q = x * x;
    constexpr auto c = inverse_factorials<22>();
    double sum = c[21];
    for (int n = 19; n >= 1; n -= 2) sum = c[n] - sum * q;
    return x * sum;
}

inline double cos_turns(double turns) { return sin_turns(turns + 0.25); }

inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// The inverse of the normal distribution function (P. J. Acklam's rational approximation), in two ranges.
inline bool is_inside(double p) { return p >= 0.02425 && p <= 0.97575; }

inline double normal_inside(double p) {
    const double q = p - 0.5, r = q * q;
    const double top = ((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r +
                         1.383577518672690e+02) * r - 3.066479806614716e+01) * r + 2.506628277459239e+00;
    const double bottom = ((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r +
                            6.680131188771972e+01) * r - 1.328068155288572e+01) * r + 1.0;
    return q * top / bottom;
}

inline double normal_outside(double p) {
    const double q = std::sqrt(-2.0 * log(p < 0.5 ? p : 1.0 - p));
    const double top = ((((-7.784894002430293e-03 * q - 3.223964580411365e-01) * q - 2.400758277161838e+00) * q -
                         2.549732539343734e+00) * q + 4.374664141464968e+00) * q + 2.938163982698783e+00;
    const double bottom = (((7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996e+00) * q +
                           3.754408661907416e+00) * q + 1.0;
    return p < 0.5 ? top / bottom : -top / bottom;
}

// A standard normal from 64 random bits.
inline double normal(uint64_t bits) {
    const double p = uniform(bits);
    return is_inside(p) ? normal_inside(p) : normal_outside(p);
}

}  // namespace gearshift::portable
