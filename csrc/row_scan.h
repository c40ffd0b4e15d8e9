// Reads row files from front to back, with large sequential reads: one file, or several files, using the newest record
// of each id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aligned_bytes.h"
#include "disk_schedule.h"
#include "row_file.h"

namespace gearshift {

// The rows of one file in the order of mix(id). Every block is verified, and that the order is kept; after the last block
// of a whole file, so are the checksum of all blocks and the number of rows.
class RowScan {
public:
    // It reads about `read_bytes` at a time, at least a block and at most as much as background work may.
    RowScan(const RowFile& file, uint32_t begin_block, uint32_t end_block, std::size_t read_bytes = kBackgroundBytes);
    explicit RowScan(const RowFile& file, std::size_t read_bytes = kBackgroundBytes) : RowScan(file, 0, file.blocks(), read_bytes) {}
    static RowScan of_keys(const RowFile& file, uint64_t first, uint64_t last);  // and a few rows before and after them

    bool done() const { return done_; }
    const StoredRow& row() const { return row_; }
    uint64_t key() const { return key_; }
    void advance();

private:
    bool next_block();
    void read(uint64_t offset, std::size_t size);

    const RowFile* file_;
    uint32_t begin_, next_, end_, loaded_ = 0, rows_ = 0, i_ = 0;
    AlignedBytes bytes_;
    const std::byte* block_ = nullptr;
    StoredRow row_{};
    uint64_t key_ = 0, seen_ = 0, blocks_checksum_ = 0;  // seen_: rows so far
    bool done_ = false;
};

// Visits the newest record of each id; the newest file comes first. A tombstone is visited too.
void each_newest(std::vector<RowScan>& scans, const std::function<void(const StoredRow&)>& visit);

using RowFiles = std::vector<std::shared_ptr<RowFile>>;  // newest first

}  // namespace gearshift
