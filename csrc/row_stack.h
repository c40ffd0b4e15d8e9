// Row files without a table: a stack of files, newest first, as a checkpoint holds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "row_block.h"
#include "row_scan.h"

namespace gearshift {

class RowStack {
public:
    explicit RowStack(const std::vector<std::string>& paths);  // all of one layout

    uint64_t layout_hash() const { return files_.front()->shape().layout_hash; }
    uint32_t begin_partition() const { return begin_; }
    uint32_t end_partition() const { return end_; }
    RowBlockData read_partition(uint32_t partition) const { return read(partition, nullptr); }  // live rows
    RowBlockData read_changes(uint32_t partition, std::vector<int64_t>& erased) const { return read(partition, &erased); }
    uint32_t width() const { return files_.front()->shape().weights; }
    uint32_t state_width() const { return files_.front()->shape().states; }
    uint64_t records() const;  // of all files: stale ones count, tombstones do not

private:
    RowBlockData read(uint32_t partition, std::vector<int64_t>* erased) const;

    RowFiles files_;
    uint32_t begin_, end_ = 0;
};

}  // namespace gearshift
