#include "row_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "feature_hash.h"
#include "row_layout.h"
#include "row_partition.h"

namespace gearshift {
namespace {

constexpr uint32_t kVersion = 1;
constexpr char kMagic[8] = {'G', 'S', 'R', 'O', 'W', 'S', '\r', '\n'};
constexpr std::size_t kBlockHead = 16, kWriteBytes = 1 << 20;
constexpr double kFilterBits = 10;  // per row
constexpr uint32_t kMostFloats = 1 << 21;
constexpr uint64_t kTombstone = uint64_t{1} << 63;

struct BlockHead {
    uint64_t checksum;  // of everything after it in the block
    uint32_t rows, zero;
};
static_assert(sizeof(BlockHead) == kBlockHead);

struct Tail {
    char magic[8];
    uint32_t version, weights, states, block_bytes;
    uint64_t layout_hash, rows, tombstones, blocks, filter_words, blocks_checksum, footer_checksum;
    uint64_t checksum;  // of all members before it
};

uint64_t checksum_of(const void* bytes, std::size_t size) {
    return xxh64(static_cast<const char*>(bytes), size, kVersion);
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock; }

void write_all(int descriptor, const std::byte* bytes, std::size_t size, uint64_t offset, const std::string& path) {
    while (size) {
        const ssize_t done = ::pwrite(descriptor, bytes, size, static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) throw RowIoError(path, "cannot be written", done < 0 ? errno : ENOSPC);
        bytes += done, offset += static_cast<uint64_t>(done), size -= static_cast<std::size_t>(done);
    }
}

void read_all(int descriptor, std::byte* bytes, std::size_t size, uint64_t offset, const std::string& path) {
    while (size) {
        const ssize_t done = ::pread(descriptor, bytes, size, static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) throw RowIoError(path, "cannot be read", errno);
        if (done == 0) throw RowFileError(path + " is damaged: it ends early");
        bytes += done, offset += static_cast<uint64_t>(done), size -= static_cast<std::size_t>(done);
    }
}

constexpr uint32_t kSalts[8] = {0x47b6137bU, 0x44974d91U, 0x8824ad5bU, 0xa2b7289dU,
                                0x705495c7U, 0x2df1424bU, 0x9efc4947U, 0x5c6bfb31U};

}  // namespace

RowIoError::RowIoError(const std::string& file, const char* what, int errno_value)
    : std::runtime_error(file + " " + what + ": " + std::strerror(errno_value)), path(file), code(errno_value) {}

int open_direct(const std::string& path, int flags) {
    int descriptor = ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == EINVAL) descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor < 0) throw RowIoError(path, "cannot be opened", errno);
    return descriptor;
}

uint64_t chained(uint64_t checksum, uint64_t block_checksum) { return mix(checksum + 1) ^ block_checksum; }

RowFileShape::RowFileShape(uint32_t weight_count, uint32_t state_count, uint64_t layout)
    : weights(weight_count),
      states(state_count),
      record_bytes(static_cast<uint32_t>(sizeof(RowMeta) + (weight_count + state_count) * sizeof(float))),
      layout_hash(layout) {
    const std::size_t one_row = kBlockHead + sizeof(int64_t) + record_bytes;
    block_bytes = static_cast<uint32_t>(rounded_up(one_row));
    rows_per_block = static_cast<uint32_t>((block_bytes - kBlockHead) / (sizeof(int64_t) + record_bytes));
}

// The split-block filter of the Parquet format: each key sets one bit in each of the eight words of one 32-byte block.
MembershipFilter::MembershipFilter(uint64_t rows) {
    const auto blocks = static_cast<std::size_t>(static_cast<double>(rows) * kFilterBits / (32 * kLanes)) + 1;
    words_.resize(blocks * kLanes);
}

void MembershipFilter::add(uint64_t key) {
    const uint64_t hash = mix(key ^ 0x5851f42d4c957f2dULL);  // the key's top bits are the same in a file of few partitions
    uint32_t* block = words_.data() + (hash >> 32) * (words_.size() / kLanes) / (uint64_t{1} << 32) * kLanes;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        block[lane] |= uint32_t{1} << (static_cast<uint32_t>(hash) * kSalts[lane] >> 27);
}

bool MembershipFilter::may_contain(uint64_t key) const {
    const uint64_t hash = mix(key ^ 0x5851f42d4c957f2dULL);
    const uint32_t* block = words_.data() + (hash >> 32) * (words_.size() / kLanes) / (uint64_t{1} << 32) * kLanes;
    bool all = true;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        all &= block[lane] >> (static_cast<uint32_t>(hash) * kSalts[lane] >> 27) & 1;
    return all;
}

// ---- reading ----

RowFile::RowFile(std::string path, const RowFileShape* expected) : path_(std::move(path)) {
    descriptor_ = open_direct(path_, O_RDONLY);
    try {
        read_tail(expected);
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

RowFile::~RowFile() {
    ::close(descriptor_);
    if (remove_) ::unlink(path_.c_str());
}

void RowFile::read_tail(const RowFileShape* expected) {
    struct stat facts;
    if (::fstat(descriptor_, &facts) != 0) throw RowIoError(path_, "cannot be read", errno);
    bytes_ = static_cast<uint64_t>(facts.st_size);
    if (bytes_ < kDiskBlock || bytes_ % kDiskBlock) throw RowFileError(path_ + " is damaged: it is cut short");
    AlignedBytes last(kDiskBlock);
    read_all(descriptor_, last.data(), kDiskBlock, bytes_ - kDiskBlock, path_);
    Tail tail;
    std::memcpy(&tail, last.data(), sizeof tail);
    if (std::memcmp(tail.magic, kMagic, sizeof kMagic) != 0 || tail.checksum != checksum_of(&tail, offsetof(Tail, checksum)))
        throw RowFileError(path_ + " is damaged, or not a row file");
    if (tail.version != kVersion)
        throw RowFileError(path_ + " has version " + std::to_string(tail.version) + " of the row file format; this is version " +
                           std::to_string(kVersion));
    if (tail.weights > kMostFloats || tail.states > kMostFloats) throw RowFileError(path_ + " is damaged: its rows are too wide");
    shape_ = RowFileShape(tail.weights, tail.states, tail.layout_hash);
    if (expected && (shape_.layout_hash != expected->layout_hash || shape_.record_bytes != expected->record_bytes))
        throw RowFileError(path_ + " holds rows of other widths or another optimizer");
    const uint64_t fences = tail.blocks * sizeof(uint64_t), filter = tail.filter_words * sizeof(uint32_t);
    const uint64_t footer = tail.blocks * shape_.block_bytes;
    if (footer + rounded_up(fences + filter) + kDiskBlock != bytes_) throw RowFileError(path_ + " is damaged: its size is wrong");
    AlignedBytes bytes(fences + filter);
    read_all(descriptor_, bytes.data(), bytes.size(), footer, path_);
    if (checksum_of(bytes.data(), fences + filter) != tail.footer_checksum)
        throw RowFileError(path_ + " is damaged: the checksum of its index is wrong");
    fences_.resize(tail.blocks);
    std::memcpy(fences_.data(), bytes.data(), fences);
    std::vector<uint32_t> words(tail.filter_words);
    std::memcpy(words.data(), bytes.data() + fences, filter);
    filter_ = MembershipFilter(std::move(words));
    rows_ = tail.rows;
    tombstones_ = tail.tombstones;
    checksum_ = tail.checksum;
    blocks_checksum_ = tail.blocks_checksum;
}

std::size_t RowFile::memory_bytes() const {
    return sizeof *this + fences_.capacity() * sizeof(uint64_t) + filter_.words().capacity() * sizeof(uint32_t);
}

int64_t RowFile::block_of(uint64_t key) const {
    return std::upper_bound(fences_.begin(), fences_.end(), key) - fences_.begin() - 1;
}

uint64_t RowFile::verify(const std::byte* bytes, uint32_t block) const {
    BlockHead head;
    std::memcpy(&head, bytes, sizeof head);
    const std::size_t skipped = sizeof head.checksum;
    const bool as_written = head.checksum == checksum_of(bytes + skipped, shape_.block_bytes - skipped) && head.rows > 0 &&
                            head.rows <= shape_.rows_per_block;
    // A block from another position has a valid checksum, too; its rows would seem not to exist.
    if (!as_written || mix(static_cast<uint64_t>(row(bytes, 0).id)) != fences_[block])
        throw RowFileError(path_ + " is damaged: the checksum of block " + std::to_string(block) + " is wrong");
    return head.checksum;
}

uint32_t RowFile::rows_in(const std::byte* block) const {
    return reinterpret_cast<const BlockHead*>(block)->rows;
}

StoredRow RowFile::row(const std::byte* block, uint32_t i) const {
    uint64_t marked;
    std::memcpy(&marked, block + kBlockHead + i * sizeof marked, sizeof marked);
    const std::byte* record = block + kBlockHead + shape_.rows_per_block * sizeof marked + std::size_t{i} * shape_.record_bytes;
    return {static_cast<int64_t>(marked & ~kTombstone), marked & kTombstone ? nullptr : record};
}

// ---- writing ----

RowFileWriter::RowFileWriter(std::string path, const RowFileShape& shape, uint64_t expected_rows)
    : path_(std::move(path)),
      part_(path_ + ".part"),
      shape_(shape),
      buffer_(std::max<std::size_t>(kWriteBytes / shape.block_bytes, 1) * shape.block_bytes),
      filter_(expected_rows) {
    if (std::max(shape.weights, shape.states) > kMostFloats) throw RowFileError("a row is too wide for a row file");
    descriptor_ = open_direct(part_, O_WRONLY | O_CREAT | O_TRUNC);
    fences_.reserve(expected_rows / shape.rows_per_block + 1);
    std::memset(buffer_.data(), 0, buffer_.size());
}

RowFileWriter::~RowFileWriter() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(part_.c_str());
}

void RowFileWriter::add(int64_t id, const std::byte* record) {
    if (in_block_ == shape_.rows_per_block) close_block();
    const uint64_t key = mix(static_cast<uint64_t>(id));
    if (in_block_ == 0) fences_.push_back(key);
    filter_.add(key);
    std::byte* block = buffer_.data() + filled_;
    const uint64_t marked = static_cast<uint64_t>(id) | (record ? 0 : kTombstone);
    std::memcpy(block + kBlockHead + in_block_ * sizeof marked, &marked, sizeof marked);
    std::byte* to = block + kBlockHead + shape_.rows_per_block * sizeof marked + std::size_t{in_block_} * shape_.record_bytes;
    if (record) std::memcpy(to, record, shape_.record_bytes);
    ++in_block_, ++rows_, tombstones_ += !record;
}

void RowFileWriter::close_block() {
    std::byte* block = buffer_.data() + filled_;
    BlockHead head{0, in_block_, 0};
    std::memcpy(block, &head, sizeof head);
    const std::size_t skipped = sizeof head.checksum;
    head.checksum = checksum_of(block + skipped, shape_.block_bytes - skipped);
    std::memcpy(block, &head.checksum, skipped);
    blocks_checksum_ = chained(blocks_checksum_, head.checksum);
    filled_ += shape_.block_bytes;
    in_block_ = 0;
    if (filled_ == buffer_.size()) flush();
}

void RowFileWriter::flush() {
    write_all(descriptor_, buffer_.data(), filled_, written_, part_);
    written_ += filled_;
    filled_ = 0;
    std::memset(buffer_.data(), 0, buffer_.size());
}

void RowFileWriter::write_footer() {
    const std::size_t fences = fences_.size() * sizeof(uint64_t), filter = filter_.words().size() * sizeof(uint32_t);
    AlignedBytes footer(rounded_up(fences + filter) + kDiskBlock);
    std::memset(footer.data(), 0, footer.size());
    std::memcpy(footer.data(), fences_.data(), fences);
    std::memcpy(footer.data() + fences, filter_.words().data(), filter);
    Tail tail{};
    std::memcpy(tail.magic, kMagic, sizeof kMagic);
    tail.version = kVersion;
    tail.weights = shape_.weights;
    tail.states = shape_.states;
    tail.block_bytes = shape_.block_bytes;
    tail.layout_hash = shape_.layout_hash;
    tail.rows = rows_;
    tail.tombstones = tombstones_;
    tail.blocks = fences_.size();
    tail.filter_words = filter_.words().size();
    tail.blocks_checksum = blocks_checksum_;
    tail.footer_checksum = checksum_of(footer.data(), fences + filter);
    tail.checksum = checksum_of(&tail, offsetof(Tail, checksum));
    std::memcpy(footer.data() + footer.size() - kDiskBlock, &tail, sizeof tail);
    write_all(descriptor_, footer.data(), footer.size(), written_, part_);
}

std::shared_ptr<RowFile> RowFileWriter::finish() {
    if (in_block_) close_block();
    flush();
    write_footer();
    if (::rename(part_.c_str(), path_.c_str()) != 0) throw RowIoError(path_, "cannot be written", errno);
    ::close(descriptor_);
    descriptor_ = -1;
    try {
        return std::make_shared<RowFile>(path_, &shape_);
    } catch (...) {
        ::unlink(path_.c_str());
        throw;
    }
}

}  // namespace gearshift
