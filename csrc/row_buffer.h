// Rows waiting to be written to a row file: a fixed number of records with an index by id. The newest record of an id
// counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "aligned_bytes.h"
#include "row_partition.h"

namespace gearshift {

class RowBuffer {
public:
    RowBuffer(uint32_t capacity, uint32_t record_bytes) : capacity_(capacity), record_bytes_(record_bytes), records_(std::size_t{capacity} * record_bytes) {
        uint32_t slots = 16;
        while (slots < 2 * capacity) slots *= 2;
        index_.resize(slots);
        ids_.reserve(capacity);
        erased_.reserve(capacity);
    }

    bool full() const { return ids_.size() == capacity_; }
    uint32_t size() const { return static_cast<uint32_t>(ids_.size()); }
    int64_t id(uint32_t i) const { return ids_[i]; }
    const std::byte* record(uint32_t i) const {  // null: a tombstone
        return erased_[i] ? nullptr : records_.data() + std::size_t{i} * record_bytes_;
    }
    std::size_t memory_bytes() const {
        return sizeof *this + records_.size() + index_.size() * sizeof(uint32_t) + std::size_t{capacity_} * (sizeof(int64_t) + 1);
    }

    int64_t find(int64_t id) const {  // -1: not here
        for (uint32_t s = home(id);; s = (s + 1) & mask()) {
            if (index_[s] == 0) return -1;
            if (ids_[index_[s] - 1] == id) return index_[s] - 1;
        }
    }

    void put(int64_t id, const std::byte* record) {  // null: a tombstone; the buffer must not be full
        uint32_t s = home(id);
        while (index_[s] != 0 && ids_[index_[s] - 1] != id) s = (s + 1) & mask();
        if (index_[s] == 0) {
            ids_.push_back(id);
            erased_.push_back(0);
            index_[s] = static_cast<uint32_t>(ids_.size());
        }
        const uint32_t i = index_[s] - 1;
        erased_[i] = record == nullptr;
        if (record) std::memcpy(records_.data() + std::size_t{i} * record_bytes_, record, record_bytes_);
    }

private:
    uint32_t mask() const { return static_cast<uint32_t>(index_.size()) - 1; }
    uint32_t home(int64_t id) const { return static_cast<uint32_t>(mix(static_cast<uint64_t>(id))) & mask(); }

    uint32_t capacity_, record_bytes_;
    PageVector<uint32_t> index_;   // number of the row + 1; 0: empty
    std::vector<int64_t> ids_;
    std::vector<uint8_t> erased_;
    AlignedBytes records_;
};

}  // namespace gearshift
