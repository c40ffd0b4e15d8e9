#include "row_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "row_partition.h"

namespace gearshift {
void throw_read_error(const RowFile& file, int error) {
    if (error < 0) throw RowFileError(file.path() + " is damaged: it ends early");
    throw RowIoError(file.path(), "cannot be read", error);
}

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
    key_ = mix(static_cast<uint64_t>(row_.id));
}

bool RowScan::next_block() {
    const uint32_t size = file_->shape().block_bytes;
    if (loaded_ == 0) {
        if (next_ == end_) {
            done_ = true;
            if (begin_ == 0 && end_ == file_->blocks() && blocks_checksum_ != file_->blocks_checksum())
                throw RowFileError(file_->path() + " is damaged: its blocks are not those that were written");
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
    for (std::size_t done = 0; done < size;) {
        ssize_t got = 0;
        int error = 0;
        in_background_turn([&] {
            got = ::pread(file_->descriptor(), bytes_.data() + done, size - done, static_cast<off_t>(offset + done));
            error = errno;
        });
        if (got < 0 && error == EINTR) continue;
        if (got <= 0) throw_read_error(*file_, got < 0 ? error : -1);
        done += static_cast<std::size_t>(got);
    }
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
