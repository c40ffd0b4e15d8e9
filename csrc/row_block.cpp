#include "row_block.h"

#include <algorithm>
#include <cstring>

#include "row_layout.h"
#include "row_partition.h"

namespace gearshift {

RowBlockData::RowBlockData(uint32_t weights_per_row, uint32_t states_per_row, std::size_t rows)
    : width(weights_per_row),
      state_width(states_per_row),
      ids(rows),
      weights(rows * weights_per_row),
      state(rows * states_per_row),
      touches(rows),
      last_step(rows),
      updates(rows),
      tables(rows) {}

void RowBlockData::copy_row(std::size_t to, const RowBlockData& other, std::size_t from) {
    ids[to] = other.ids[from];
    touches[to] = other.touches[from], last_step[to] = other.last_step[from], updates[to] = other.updates[from];
    tables[to] = other.tables[from];
    std::copy_n(other.weights.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                weights.begin() + static_cast<std::ptrdiff_t>(to * width));
    std::copy_n(other.state.begin() + static_cast<std::ptrdiff_t>(from * state_width), state_width,
                state.begin() + static_cast<std::ptrdiff_t>(to * state_width));
}

void RowBlockData::to_record(std::size_t row, std::byte* record) const {
    const RowBlockView view{ids, weights.data(), state.data(), touches.data(), last_step.data(), updates.data(),
                            tables.data()};
    view.to_record(row, width, state_width, record);
}

void RowBlockView::to_record(std::size_t row, uint32_t width, uint32_t state_width, std::byte* record) const {
    const RowMeta meta{touches[row], last_step[row], std::min(updates[row], kMostUpdates), tables[row]};
    std::memcpy(record, &meta, sizeof meta);
    std::memcpy(record + sizeof meta, weights + row * width, width * sizeof(float));
    if (state_width)
        std::memcpy(record + sizeof meta + width * sizeof(float), state + row * state_width, state_width * sizeof(float));
}

void add_rows(RowFileWriter& writer, const RowBlockView& rows, std::span<const int64_t> erased) {
    struct Added {
        uint64_t key;
        std::size_t row;
    };
    std::vector<Added> all;
    all.reserve(rows.ids.size() + erased.size());
    for (std::size_t i = 0; i < rows.ids.size(); ++i) all.push_back({mix(static_cast<uint64_t>(rows.ids[i])), i});
    for (std::size_t i = 0; i < erased.size(); ++i)
        all.push_back({mix(static_cast<uint64_t>(erased[i])), rows.ids.size() + i});
    std::sort(all.begin(), all.end(), [](const Added& a, const Added& b) { return a.key < b.key; });
    const RowFileShape& shape = writer.shape();
    std::vector<std::byte> record(shape.record_bytes);
    for (const Added& each : all) {
        if (each.row >= rows.ids.size()) {
            writer.add(erased[each.row - rows.ids.size()], nullptr);
        } else {
            rows.to_record(each.row, shape.weights, shape.states, record.data());
            writer.add(rows.ids[each.row], record.data());
        }
    }
}

void RecordCollector::add(int64_t id, const std::byte* record) {
    entries_.push_back({id, records_.size()});
    records_.insert(records_.end(), record, record + shape_.record_bytes);
}

RowBlockData RecordCollector::sorted() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
    RowBlockData block(shape_.weights, shape_.states, entries_.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const std::byte* record = records_.data() + entries_[i].offset;
        RowMeta meta;
        std::memcpy(&meta, record, sizeof meta);
        block.ids[i] = entries_[i].id;
        block.touches[i] = meta.touches, block.last_step[i] = meta.last_step, block.updates[i] = meta.updates;
        block.tables[i] = static_cast<uint16_t>(meta.table);
        std::memcpy(block.weights.data() + i * block.width, record + sizeof meta, block.width * sizeof(float));
        if (block.state_width)
            std::memcpy(block.state.data() + i * block.state_width, record + sizeof meta + block.width * sizeof(float),
                        block.state_width * sizeof(float));
    }
    return block;
}

RowBlockData merged_by_id(const RowBlockData& a, const RowBlockData& b) {
    RowBlockData all(a.width, a.state_width, a.rows() + b.rows());
    for (std::size_t i = 0, in_a = 0, in_b = 0; i < all.rows(); ++i) {
        const bool from_a = in_b == b.rows() || (in_a < a.rows() && a.ids[in_a] < b.ids[in_b]);
        all.copy_row(i, from_a ? a : b, from_a ? in_a++ : in_b++);
    }
    return all;
}

}  // namespace gearshift
