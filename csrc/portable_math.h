// Elementary functions and random bits that give the same bits on every machine.
//
// Built from IEEE additions, multiplications, divisions and square roots alone, in a fixed order: no libm (its
// last digit differs between versions), no fused multiply-add (the project compiles with -ffp-contract=off), no
// state. Accurate to about 1e-15 (`normal`: 1e-9), which is far more than a synthetic log needs. Arguments are
// finite; nothing here guards against NaN.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

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

inline double uniform(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }  // in (0, 1)

inline uint32_t below(uint32_t size, uint64_t bits) {  // in [0, size), from the upper half of the bits
    return static_cast<uint32_t>(((bits >> 32) * size) >> 32);
}

inline double nearest(double x) {  // ties may go either way; |x| < 2^51
    return (x + 0x1.8p52) - 0x1.8p52;
}

// 1/n! for the Taylor series; the compiler divides, correctly rounded.
template <int kTerms>
constexpr std::array<double, kTerms> inverse_factorials() {
    std::array<double, kTerms> inverse{};
    double factorial = 1.0;
    for (int n = 0; n < kTerms; ++n) inverse[n] = 1.0 / (factorial *= n ? n : 1);
    return inverse;
}

inline double exp(double x) {  // beyond +-700: the value there
    x = x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
    const double k = nearest(x * 1.44269504088896340736);
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;  // |r| <= ln(2) / 2
    constexpr auto c = inverse_factorials<14>();
    double sum = c[13];
    for (int n = 12; n >= 0; --n) sum = sum * r + c[n];
    return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(k) + 1023) << 52);
}

inline double log(double x) {  // x > 0 and normal
    uint64_t bits = std::bit_cast<uint64_t>(x);
    int exponent = static_cast<int>(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
    if (m > 1.41421356237309504880) m *= 0.5, ++exponent;
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

// A standard normal from 64 random bits: the inverse distribution function (P. J. Acklam's rational approximation).
inline double normal(uint64_t bits) {
    const double p = uniform(bits);
    if (p >= 0.02425 && p <= 0.97575) {
        const double q = p - 0.5, r = q * q;
        const double top = ((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r +
                             1.383577518672690e+02) * r - 3.066479806614716e+01) * r + 2.506628277459239e+00;
        const double bottom = ((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r +
                                6.680131188771972e+01) * r - 1.328068155288572e+01) * r + 1.0;
        return q * top / bottom;
    }
    const double q = std::sqrt(-2.0 * log(p < 0.5 ? p : 1.0 - p));
    const double top = ((((-7.784894002430293e-03 * q - 3.223964580411365e-01) * q - 2.400758277161838e+00) * q -
                         2.549732539343734e+00) * q + 4.374664141464968e+00) * q + 2.938163982698783e+00;
    const double bottom = (((7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996e+00) * q +
                           3.754408661907416e+00) * q + 1.0;
    return p < 0.5 ? top / bottom : -top / bottom;
}

}  // namespace gearshift::portable
