// Complete rows in columns, sorted by id: the form in which rows leave the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "row_file.h"

namespace gearshift {

struct RowBlockData {
    RowBlockData(uint32_t weights_per_row, uint32_t states_per_row, std::size_t rows);

    uint32_t width, state_width;
    std::vector<int64_t> ids;
    std::vector<float> weights, state;
    std::vector<uint32_t> touches, last_step, updates;
    std::vector<uint16_t> tables;

    std::size_t rows() const { return ids.size(); }
    void copy_row(std::size_t to, const RowBlockData& other, std::size_t from);
    void to_record(std::size_t row, std::byte* record) const;  // as in a row file
};

// The same rows where another owner keeps them, in any order.
struct RowBlockView {
    std::span<const int64_t> ids;
    const float *weights, *state;
    const uint32_t *touches, *last_step, *updates;
    const uint16_t* tables;

    void to_record(std::size_t row, uint32_t width, uint32_t state_width, std::byte* record) const;  // as in a row file
};

// Adds rows and tombstones in the order that the file needs. Their partitions must follow those added before.
void add_rows(RowFileWriter& writer, const RowBlockView& rows, std::span<const int64_t> erased);

// Collects records of row files; `sorted` makes a block of them.
class RecordCollector {
public:
    explicit RecordCollector(const RowFileShape& shape) : shape_(shape) {}
    void add(int64_t id, const std::byte* record);
    bool empty() const { return entries_.empty(); }
    RowBlockData sorted();

private:
    struct Entry {
        int64_t id;
        std::size_t offset;
    };
    RowFileShape shape_;
    std::vector<Entry> entries_;
    std::vector<std::byte> records_;
};

RowBlockData merged_by_id(const RowBlockData& a, const RowBlockData& b);  // no id may be in both

}  // namespace gearshift
