#include "row_stack.h"

#include <algorithm>
#include <stdexcept>

#include "row_partition.h"

namespace gearshift {

RowStack::RowStack(const std::vector<std::string>& paths) : begin_(kPartitions) {
    if (paths.empty()) throw std::invalid_argument("a stack has at least one file");
    for (const std::string& path : paths) {
        const RowFileShape* first = files_.empty() ? nullptr : &files_.front()->shape();
        files_.push_back(std::make_shared<RowFile>(path, first, /*cached=*/true));
        const RowFile& file = *files_.back();
        if (!file.blocks()) continue;
        begin_ = std::min(begin_, partition_of(RowScan(file, 0, 1).key()));
        for (RowScan last(file, file.blocks() - 1, file.blocks()); !last.done(); last.advance())
            end_ = std::max(end_, partition_of(last.key()) + 1);
    }
    begin_ = std::min(begin_, end_);
}

uint64_t RowStack::records() const {
    uint64_t rows = 0;
    for (const auto& file : files_) rows += file->rows() - file->tombstones();
    return rows;
}

RowBlockData RowStack::read(uint32_t partition, std::vector<int64_t>* erased) const {
    const uint64_t first = uint64_t{partition} << 56, last = first + ((uint64_t{1} << 56) - 1);
    std::vector<RowScan> scans;
    for (const auto& file : files_) scans.push_back(RowScan::of_keys(*file, first, last));
    RecordCollector rows(files_.front()->shape());
    each_newest(scans, [&](const StoredRow& row) {
        if (partition_of(mix(static_cast<uint64_t>(row.id))) != partition) return;
        if (row.record)
            rows.add(row.id, row.record);
        else if (erased)
            erased->push_back(row.id);
    });
    if (erased) std::sort(erased->begin(), erased->end());
    return rows.sorted();
}

}  // namespace gearshift
