#include "row_scan.h"

#include <algorithm>

#include "row_partition.h"
#include "whole_read.h"

namespace gearshift {

RowScan::RowScan(const RowFile& file, uint32_t begin, uint32_t end, std::size_t read_bytes)
    : file_(&file), begin_(begin), next_(begin), end_(end),
      bytes_(std::max<std::size_t>(std::min(read_bytes, kBackgroundBytes) / file.shape().block_bytes, 1) * file.shape().block_bytes) {
    advance();
}

RowScan RowScan::of_keys(const RowFile& file, uint64_t first, uint64_t last) {
    const int64_t begin = std::max<int64_t>(file.block_of(first), 0), end = file.block_of(last) + 1;
    return RowScan(file, static_cast<uint32_t>(begin), static_cast<uint32_t>(std::max(begin, end)));
}

void RowScan::advance() {
    while (i_ == rows_)
        if (!next_block()) return;
    row_ = file_->row(block_, i_++);
    const uint64_t key = mix(static_cast<uint64_t>(row_.id));
    if (seen_++ && key <= key_) throw RowFileError(file_->path() + " is damaged: its rows are not in order");
    key_ = key;
}

bool RowScan::next_block() {
    const uint32_t size = file_->shape().block_bytes;
    if (loaded_ == 0) {
        if (next_ == end_) {
            done_ = true;
            if (begin_ == 0 && end_ == file_->blocks()) file_->facts().verify_blocks(blocks_checksum_, seen_, file_->path());
            return false;
        }
        loaded_ = std::min<uint32_t>(end_ - next_, static_cast<uint32_t>(bytes_.size() / size));
        read(file_->offset_of(next_), std::size_t{loaded_} * size);
        block_ = bytes_.data() - size;
    }
    block_ += size, --loaded_;
    blocks_checksum_ = chained(blocks_checksum_, file_->verify(block_, next_++));
    rows_ = file_->rows_in(block_), i_ = 0;
    return true;
}

void RowScan::read(uint64_t offset, std::size_t size) {
    int error = 0;
    in_background_turn([&] { error = read_whole(file_->descriptor(), bytes_.data(), size, offset); });
    if (error) throw_read_error(file_->path(), error);
}

void each_newest(std::vector<RowScan>& scans, const std::function<void(const StoredRow&)>& visit) {
    for (;;) {
        RowScan* newest = nullptr;
        for (RowScan& scan : scans)
            if (!scan.done() && (!newest || scan.key() < newest->key())) newest = &scan;
        if (!newest) return;
        const uint64_t key = newest->key();
        visit(newest->row());
        for (RowScan& scan : scans)
            if (!scan.done() && scan.key() == key) scan.advance();
    }
}

}  // namespace gearshift
