// A row file: immutable, rows of one size, sorted by hashed id. The cold tier consists of such files.
//
//   block 0 | block 1 | ... | fences | filter | padding to 4 KiB | tail (4 KiB)
//
//   block   a multiple of 4 KiB: checksum (8 bytes), rows (4), zero (4), ids (a column), records
//   record  occurrences, last step, updates (4 bytes each), weights, optimizer state; little-endian floats
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
#include <stdexcept>
#include <string>
#include <vector>

#include "aligned_bytes.h"

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

struct RowFileShape {
    RowFileShape(uint32_t weights, uint32_t states, uint64_t layout_hash);

    uint32_t weights, states;  // floats of a row
    uint32_t record_bytes, block_bytes, rows_per_block;
    uint64_t layout_hash;  // hash of widths and optimizers: a file with a different layout is rejected
};

// A row inside a block in memory.
struct StoredRow {
    int64_t id;
    const std::byte* record;  // null: a tombstone
};

class MembershipFilter {
public:
    explicit MembershipFilter(uint64_t rows);
    explicit MembershipFilter(std::vector<uint32_t>&& words) : words_(std::move(words)) {}

    void add(uint64_t key);
    bool may_contain(uint64_t key) const;
    const std::vector<uint32_t>& words() const { return words_; }

private:
    static constexpr uint32_t kLanes = 8;  // words of a block, one bit is set in each
    std::vector<uint32_t> words_;
};

// An open file. If `remove_when_unused` was called, it is unlinked when its last user releases it.
class RowFile {
public:
    // Verifies tail, fences and filter; refuses a file of another layout than `expected`, if there is one.
    explicit RowFile(std::string path, const RowFileShape* expected = nullptr);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    const std::string& path() const { return path_; }
    const RowFileShape& shape() const { return shape_; }
    int descriptor() const { return descriptor_; }
    uint64_t rows() const { return rows_; }  // tombstones included
    uint64_t tombstones() const { return tombstones_; }
    uint32_t blocks() const { return static_cast<uint32_t>(fences_.size()); }
    uint64_t bytes() const { return bytes_; }
    uint64_t checksum() const { return checksum_; }  // of the complete content
    uint64_t blocks_checksum() const { return blocks_checksum_; }
    std::size_t memory_bytes() const;
    void remove_when_unused() { remove_ = true; }

    bool may_contain(uint64_t key) const { return filter_.may_contain(key); }
    int64_t block_of(uint64_t key) const;  // the block that holds this hashed id if the file does; -1: none
    uint64_t offset_of(uint32_t block) const { return uint64_t{block} * shape_.block_bytes; }

    // Throws RowFileError if the block is damaged.
    uint64_t verify(const std::byte* bytes, uint32_t block) const;  // returns its checksum
    uint32_t rows_in(const std::byte* block) const;
    StoredRow row(const std::byte* block, uint32_t i) const;

private:
    void read_tail(const RowFileShape* expected);

    std::string path_;
    RowFileShape shape_{0, 0, 0};
    int descriptor_ = -1;
    bool remove_ = false;
    uint64_t rows_ = 0, tombstones_ = 0, bytes_ = 0, checksum_ = 0, blocks_checksum_ = 0;
    std::vector<uint64_t> fences_;
    MembershipFilter filter_{0};
};

// Writes a file front to back. Until `finish` has returned, the file does not exist under its name.
class RowFileWriter {
public:
    RowFileWriter(std::string path, const RowFileShape& shape, uint64_t expected_rows);
    ~RowFileWriter();  // removes an unfinished file
    RowFileWriter(const RowFileWriter&) = delete;
    RowFileWriter& operator=(const RowFileWriter&) = delete;

    void add(int64_t id, const std::byte* record);  // ascending by mix(id); a null record is a tombstone
    std::shared_ptr<RowFile> finish();
    uint64_t rows() const { return rows_; }

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
};

// The checksum of a file's blocks follows from those of its blocks, in order; it starts at 0.
uint64_t chained(uint64_t checksum, uint64_t block_checksum);

// Opens with O_DIRECT where the file system allows it, so that the page cache does not use memory outside the budget.
int open_direct(const std::string& path, int flags);

}  // namespace gearshift
