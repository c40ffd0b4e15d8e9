// One push's numbers, worked out once per call and read for every row: rates as float32, and Adam's bias corrections.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "row_layout.h"

namespace gearshift {

struct AdamCorrection {
    float first;   // 1 / (1 - beta1^t)
    float second;  // 1 / sqrt(1 - beta2^t)
};

// Corrections by t, in a table until they are 1 in float32 (or it is long); powers by products, the same everywhere.
class AdamCorrections {
public:
    AdamCorrections(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {
        table_.push_back({1.0f, 1.0f});  // t = 0 does not occur
        double power1 = 1.0, power2 = 1.0;
        while (table_.size() < kLongest && (power1 > kNothing || power2 > kNothing))
            table_.push_back(correction(power1 *= beta1, power2 *= beta2));
    }
    AdamCorrection at(uint32_t t) const { return t < table_.size() ? table_[t] : beyond(t); }

private:
    static constexpr std::size_t kLongest = 1 << 18;
    static constexpr double kNothing = 1.0 / (1 << 26);

    static AdamCorrection correction(double power1, double power2) {
        return {static_cast<float>(1.0 / (1.0 - power1)), static_cast<float>(1.0 / std::sqrt(1.0 - power2))};
    }
    static double power(double base, uint32_t t) {
        double result = 1.0;
        for (; t > 0; t >>= 1, base *= base)
            if (t & 1) result *= base;
        return result;
    }
    AdamCorrection beyond(uint32_t t) const { return correction(power(beta1_, t), power(beta2_, t)); }

    double beta1_, beta2_;
    std::vector<AdamCorrection> table_;
};

struct PartStep {
    OptimizerKind kind;
    uint32_t width, column;
    FloatsAt weights, state;
    float lr, l1, l2, eps, beta, beta1, beta1_rest, beta2, beta2_rest;
    float clip, shortest;  // CowClip's ratio (0: off), and the length that shorter weights are taken to have
    const AdamCorrections* corrections;  // Adam's, else null
};

inline PartStep step_of(const PartPlan& plan, double lr_scale, const AdamCorrections* corrections) {
    const PartSpec& s = plan.spec;
    const auto f = [](double x) { return static_cast<float>(x); };
    // FTRL's weights follow from all gradients so far and one rate: another rate would move rows that learned nothing.
    const double lr = s.kind == OptimizerKind::ftrl && lr_scale > 0 ? s.lr : s.lr * lr_scale;
    return {s.kind,        s.width,    plan.column,      plan.weights, plan.state,       f(lr),
            f(s.l1),       f(s.l2),    f(s.eps),         f(s.beta),    f(s.beta1),       f(1.0 - s.beta1),
            f(s.beta2),    f(1.0 - s.beta2), f(s.clip), f(s.clip * std::sqrt(s.width) * s.clip_zeta), corrections};
}

}  // namespace gearshift
