// The values of one push, computed once per call and used for every row: float32 rates, and Adam's bias corrections.
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

// Corrections by t, in a table until they are 1 in float32 (or it is long enough); powers by repeated multiplication.
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
#define GEARSHIFT_NUMBER(name) float name;
    GEARSHIFT_ROW_NUMBERS(GEARSHIFT_NUMBER)
#undef GEARSHIFT_NUMBER
    float beta1_rest, beta2_rest;
    float shortest;  // CowClip: the minimum norm assumed for a row's weights
    const AdamCorrections* corrections;  // Adam's, else null
};

inline PartStep step_of(const PartPlan& plan, double lr_scale, const AdamCorrections* corrections) {
    const PartSpec& s = plan.spec;
    const auto f = [](double x) { return static_cast<float>(x); };
    PartStep step{};
    step.kind = s.kind;
    step.width = s.width;
    step.column = plan.column;
    step.weights = plan.weights;
    step.state = plan.state;
#define GEARSHIFT_NUMBER(name) step.name = f(s.name);
    GEARSHIFT_ROW_NUMBERS(GEARSHIFT_NUMBER)
#undef GEARSHIFT_NUMBER
    // FTRL's weights follow from all gradients so far and one rate: a different rate would move rows that received no
    // gradient.
    step.lr = f(s.kind == OptimizerKind::ftrl && lr_scale > 0 ? s.lr : s.lr * lr_scale);
    step.beta1_rest = f(1.0 - s.beta1);
    step.beta2_rest = f(1.0 - s.beta2);
    step.shortest = f(s.clip * std::sqrt(s.width) * s.clip_zeta);
    step.corrections = corrections;
    return step;
}

}  // namespace gearshift
