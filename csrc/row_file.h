// A row file: immutable, rows of one size, sorted by hashed id. The cold tier consists of such files.
//
//   block 0 | block 1 | ... | fences | filter | padding to 4 KiB | tail (4 KiB)
//
//   block   a multiple of 4 KiB: checksum (8 bytes), rows (4), zero (4), ids (a column), records
//   record  occurrences, last step, updates (4 bytes each; 10 bits of the last have the table), weights, optimizer state;
//           little-endian floats; or, in a file for serving, weights alone at some precision (row_precision.h)
//   fences  the hashed id of each block's first row, all 64 bits: a lookup reads one block, and there are no ties
//   filter  a split-block Bloom filter of about 10 bits per row: about 1 in 80 absent ids costs a needless read
//   tail    format version, layout hash, counts, checksums of all blocks and of the rest, checksum of itself
//
// The order is that of mix(id), so partitions are contiguous. An id with the sign bit set is a tombstone: the row was
// erased. This differs from a row of zeros, which still exists. Memory per row is the fences and the filter: 1.6 bytes
// at width 16. Checksums (XXH64) are verified whenever a block is read. This file does not depend on tables, tiers or
// Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "aligned_bytes.h"
#include "membership_filter.h"
#include "row_precision.h"

namespace gearshift {

// A file is damaged or has unexpected contents; the message names the file.
struct RowFileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The system cannot read or write a file.
struct RowIoError : std::runtime_error {
    RowIoError(const std::string& file, const char* what, int errno_value);
    std::string path;
    int code;
};

// A new file cannot be written. Its intended contents are still where they were.
struct RowWriteError : RowIoError {
    using RowIoError::RowIoError;
};

[[noreturn]] void throw_read_error(const std::string& path, int error);  // of `read_whole` or of an extent

constexpr std::size_t kBlockHead = 16;

struct RowFileShape {
    RowFileShape() = default;
    RowFileShape(uint32_t weights, uint32_t states, uint64_t layout_hash);  // complete rows
    RowFileShape(RowRecord precision, std::vector<uint32_t> part_widths);   // weights alone

    uint32_t weights = 0, states = 0;  // floats of a row
    uint32_t record_bytes = 0, block_bytes = 0, rows_per_block = 0;
    uint64_t layout_hash = 0;  // of widths and optimizers: a file of another layout is refused
    RowRecord record = RowRecord::training;
    std::vector<uint32_t> parts;  // their widths, if there are weights alone

private:
    void fit_blocks();
};

// A row inside a block in memory.
struct StoredRow {
    int64_t id;
    const std::byte* record;  // null: a tombstone
};

uint32_t rows_in_block(const std::byte* block);
StoredRow row_in_block(const RowFileShape& shape, const std::byte* block, int64_t i);
// The checksum of a block, after verifying it and its place: its first row has the hashed id `fence`. Throws RowFileError.
uint64_t verified_checksum(const RowFileShape& shape, const std::byte* block, uint32_t number, uint64_t fence,
                           const std::string& path);

// The last block whose first key is not greater; -1: none.
int64_t block_of_key(std::span<const uint64_t> fences, uint64_t key);

// What the tail says.
struct RowFileFacts {
    RowFileShape shape;
    uint64_t bytes = 0, rows = 0, tombstones = 0, blocks = 0, filter_words = 0;
    uint64_t blocks_checksum = 0, footer_checksum = 0, checksum = 0;  // the last covers the whole content

    // Verifies the tail, also that its numbers can be those of such a file. The descriptor may be for direct I/O.
    static RowFileFacts read(int descriptor, const std::string& path);
    uint64_t footer_offset() const { return blocks * shape.block_bytes; }
    uint64_t footer_bytes() const { return blocks * sizeof(uint64_t) + filter_words * sizeof(uint32_t); }
    void verify_footer(const std::byte* footer, const std::string& path) const;  // up to the tail
    void verify_blocks(uint64_t checksum_of_blocks, uint64_t rows_in_blocks, const std::string& path) const;

private:
    void check_counts(const std::string& path) const;
};

// An open file. It is unlinked when the last user lets go of it, if `remove_when_unused` was called.
class RowFile {
public:
    // Verifies tail, fences and filter; refuses a file of another layout than `expected`, if there is one.
    // `cached`: read through the page cache, which reads ahead, instead of by direct I/O.
    explicit RowFile(std::string path, const RowFileShape* expected = nullptr, bool cached = false);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    const std::string& path() const { return path_; }
    const RowFileShape& shape() const { return facts_.shape; }
    int descriptor() const { return descriptor_; }
    uint64_t rows() const { return facts_.rows; }  // tombstones included
    uint64_t tombstones() const { return facts_.tombstones; }
    uint32_t blocks() const { return static_cast<uint32_t>(fences_.size()); }
    uint64_t bytes() const { return facts_.bytes; }
    uint64_t checksum() const { return facts_.checksum; }  // of the whole content
    const RowFileFacts& facts() const { return facts_; }
    std::size_t memory_bytes() const;
    void remove_when_unused() { remove_ = true; }

    bool may_contain(uint64_t key) const { return filter_.may_contain(key); }
    void prefetch(uint64_t key) const { filter_.prefetch(key); }  // what `may_contain` reads
    // The block that holds this hashed id if the file does; -1: none.
    int64_t block_of(uint64_t key) const { return block_of_key(fences_, key); }
    uint64_t offset_of(uint32_t block) const { return uint64_t{block} * facts_.shape.block_bytes; }

    // Throws RowFileError if the block is damaged; returns its checksum.
    uint64_t verify(const std::byte* bytes, uint32_t block) const {
        return verified_checksum(facts_.shape, bytes, block, fences_[block], path_);
    }
    uint32_t rows_in(const std::byte* block) const { return rows_in_block(block); }
    StoredRow row(const std::byte* block, uint32_t i) const { return row_in_block(facts_.shape, block, i); }
    int64_t find(const std::byte* block, int64_t id) const;  // the number of the row with this id; -1: none

private:
    void read_footer(const RowFileShape* expected);

    std::string path_;
    RowFileFacts facts_;
    int descriptor_ = -1;
    bool remove_ = false;
    std::vector<uint64_t> fences_;
    MembershipFilter filter_{0};
};

constexpr uint64_t kRowsUnknown = ~uint64_t{0};

// Writes a file front to back. Until `finish` has returned, the file does not exist under its name.
class RowFileWriter {
public:
    // The filter is made for `expected_rows`. If they are unknown, the writer holds 8 bytes per row until the end. `cached`:
    // through the page cache, so that writing does not wait for the disk; whoever needs the file to be durable syncs it.
    RowFileWriter(std::string path, const RowFileShape& shape, uint64_t expected_rows, bool cached = false);
    ~RowFileWriter();  // removes an unfinished file
    RowFileWriter(const RowFileWriter&) = delete;
    RowFileWriter& operator=(const RowFileWriter&) = delete;

    void add(int64_t id, const std::byte* record);  // ascending by mix(id); a null record is a tombstone
    std::shared_ptr<RowFile> finish();
    uint64_t rows() const { return rows_; }
    const RowFileShape& shape() const { return shape_; }
    const std::string& path() const { return path_; }

private:
    void close_block();
    void flush();
    void write_footer();

    std::string path_, part_;
    RowFileShape shape_;
    int descriptor_ = -1;
    AlignedBytes buffer_;
    std::size_t filled_ = 0;    // bytes of complete blocks in the buffer
    uint32_t in_block_ = 0;     // rows in the current block
    uint64_t written_ = 0, rows_ = 0, tombstones_ = 0, blocks_checksum_ = 0;
    std::vector<uint64_t> fences_;
    MembershipFilter filter_;
    bool rows_unknown_, cached_;
    std::vector<uint64_t> keys_;  // for the filter, if the number of rows is unknown
    uint64_t last_key_ = 0;
};

// The checksum of a file's blocks follows from those of its blocks, in order; it starts at 0.
uint64_t chained(uint64_t checksum, uint64_t block_checksum);

// Opens with O_DIRECT where the file system allows it, so that the page cache does not use memory outside the budget.
int open_direct(const std::string& path, int flags);
int open_file(const std::string& path, int flags, bool cached);  // `cached`: without O_DIRECT

}  // namespace gearshift
