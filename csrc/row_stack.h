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

    uint32_t begin_partition() const { return begin_; }
    uint32_t end_partition() const { return end_; }
    RowBlockData read_partition(uint32_t partition) const;  // live rows

private:
    RowFiles files_;
    uint32_t begin_, end_ = 0;
};

}  // namespace gearshift
