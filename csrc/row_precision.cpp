#include "row_precision.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace gearshift {
namespace {

constexpr uint32_t kNarrow = 8;
constexpr float kLargestCode = 127;

bool scaled(uint32_t part) { return part >= kNarrow; }

void require_finite(const float* weights, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (!std::isfinite(weights[i])) throw NotFinite("is not finite");
}

uint16_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // ties go to the even neighbour
    if ((rounded & 0x7f80) == 0x7f80) throw NotFinite("is too large for bfloat16");
    return static_cast<uint16_t>(rounded);
}

float of_bfloat16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// The scale of a row of zeros is 0, and so is that of weights that are too small for any scale.
float scale_of(const float* weights, uint32_t count) {
    float largest = 0;
    for (uint32_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(weights[i]));
    return largest / kLargestCode;
}

int8_t to_code(float weight, float scale) {
    if (scale == 0) return 0;
    return static_cast<int8_t>(std::nearbyint(std::clamp(weight / scale, -kLargestCode, kLargestCode)));  // ties to even
}

}  // namespace

RowCodec::RowCodec(RowRecord precision, std::vector<uint32_t> part_widths)
    : precision_(precision), parts_(std::move(part_widths)) {
    for (uint32_t part : parts_) {
        width_ += part;
        scales_ += scaled(part);
        if (precision == RowRecord::int8) record_bytes_ += scaled(part) ? part + 4 : part * 4;
    }
    if (precision == RowRecord::float32) record_bytes_ = width_ * 4;
    if (precision == RowRecord::bfloat16) record_bytes_ = width_ * 2;
    if (!record_bytes_) throw std::invalid_argument("rows without weights, or of no known precision");
}

void RowCodec::encode(const float* weights, std::byte* record) const {
    require_finite(weights, width_);
    if (precision_ == RowRecord::float32) {
        std::memcpy(record, weights, width_ * sizeof(float));
        return;
    }
    if (precision_ == RowRecord::bfloat16) {
        for (uint32_t i = 0; i < width_; ++i) {
            const uint16_t value = to_bfloat16(weights[i]);
            std::memcpy(record + i * sizeof value, &value, sizeof value);
        }
        return;
    }
    std::byte *scales = record, *values = record + scales_ * sizeof(float);
    for (uint32_t part : parts_) {
        if (!scaled(part)) {
            std::memcpy(values, weights, part * sizeof(float));
            values += part * sizeof(float);
        } else {
            const float scale = scale_of(weights, part);
            std::memcpy(scales, &scale, sizeof scale);
            scales += sizeof scale;
            for (uint32_t i = 0; i < part; ++i) *values++ = static_cast<std::byte>(to_code(weights[i], scale));
        }
        weights += part;
    }
}

void RowCodec::decode(const std::byte* record, float* weights) const {
    if (precision_ == RowRecord::float32) {
        std::memcpy(weights, record, width_ * sizeof(float));
        return;
    }
    if (precision_ == RowRecord::bfloat16) {
        for (uint32_t i = 0; i < width_; ++i) {
            uint16_t value;
            std::memcpy(&value, record + i * sizeof value, sizeof value);
            weights[i] = of_bfloat16(value);
        }
        return;
    }
    const std::byte *scales = record, *values = record + scales_ * sizeof(float);
    for (uint32_t part : parts_) {
        if (!scaled(part)) {
            std::memcpy(weights, values, part * sizeof(float));
            values += part * sizeof(float);
        } else {
            float scale;
            std::memcpy(&scale, scales, sizeof scale);
            scales += sizeof scale;
            for (uint32_t i = 0; i < part; ++i) weights[i] = scale * static_cast<float>(static_cast<int8_t>(values[i]));
            values += part;
        }
        weights += part;
    }
}

}  // namespace gearshift
