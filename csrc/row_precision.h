// The weights of a row at a lower precision, as row files for serving hold them. Training always uses float32.
//
//   float32    the same bits
//   bfloat16   the upper half of a float32, rounded to nearest even: 8 bits of precision, the same range
//   int8       per part of the row a float32 scale, largest magnitude / 127, and one byte per weight: weight = scale * byte.
//              All scales come first, then the parts. A part of fewer than 8 columns stays float32, because a scale would
//              cost as much as it saves.
//
// A row of zeros stays a row of zeros. Weights that are not finite, or that bfloat16 would round to infinity, are refused.
// It does not depend on files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gearshift {

enum class RowRecord : uint32_t { training = 0, float32 = 1, bfloat16 = 2, int8 = 3 };  // stored in files: never renumber

// A weight that cannot be stored.
struct NotFinite : std::domain_error {
    using std::domain_error::domain_error;
};

class RowCodec {
public:
    RowCodec(RowRecord precision, std::vector<uint32_t> part_widths);  // not for training

    uint32_t width() const { return width_; }
    uint32_t record_bytes() const { return record_bytes_; }
    void encode(const float* weights, std::byte* record) const;
    void decode(const std::byte* record, float* weights) const;

private:
    RowRecord precision_;
    std::vector<uint32_t> parts_;
    uint32_t width_ = 0, scales_ = 0, record_bytes_ = 0;
};

}  // namespace gearshift
