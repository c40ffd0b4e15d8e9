// Writes the weights of rows to a row file for serving, at some precision, and keeps the largest error that this makes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "row_file.h"
#include "row_precision.h"

namespace gearshift {

class FrozenWriter {
public:
    FrozenWriter(std::string path, RowRecord precision, std::vector<uint32_t> part_widths);

    uint32_t width() const { return codec_.width(); }
    uint64_t rows() const { return writer_.rows(); }
    double largest_error() const { return largest_error_; }  // of a weight, absolute
    // Rows in any order; their partitions must follow those added before.
    void add(std::span<const int64_t> ids, const float* weights_UW);
    void finish() { writer_.finish(); }

private:
    RowCodec codec_;
    RowFileWriter writer_;
    double largest_error_ = 0;
};

}  // namespace gearshift
