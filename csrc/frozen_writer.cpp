#include "frozen_writer.h"

#include <algorithm>
#include <cmath>

#include "row_partition.h"

namespace gearshift {

FrozenWriter::FrozenWriter(std::string path, RowRecord precision, std::vector<uint32_t> part_widths)
    : codec_(precision, part_widths),
      writer_(std::move(path), RowFileShape(precision, std::move(part_widths)), kRowsUnknown, /*cached=*/true) {}

void FrozenWriter::add(std::span<const int64_t> ids, const float* weights_UW) {
    std::vector<std::size_t> order(ids.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return mix(static_cast<uint64_t>(ids[a])) < mix(static_cast<uint64_t>(ids[b]));
    });
    std::vector<std::byte> record(codec_.record_bytes());
    std::vector<float> decoded(width());
    for (const std::size_t i : order) {
        const float* weights = weights_UW + i * width();
        try {
            codec_.encode(weights, record.data());
        } catch (const NotFinite& error) {
            throw RowFileError("a weight of the row with id " + std::to_string(ids[i]) + " " + error.what() +
                               "; use an earlier checkpoint");
        }
        codec_.decode(record.data(), decoded.data());
        for (uint32_t c = 0; c < width(); ++c)
            largest_error_ = std::max(largest_error_, std::abs(double{weights[c]} - double{decoded[c]}));
        writer_.add(ids[i], record.data());
    }
}

}  // namespace gearshift
