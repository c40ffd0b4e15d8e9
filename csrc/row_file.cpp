#include "row_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>

#include "disk_schedule.h"
#include "feature_hash.h"
#include "row_layout.h"
#include "row_partition.h"
#include "whole_read.h"

namespace gearshift {
namespace {

constexpr uint32_t kVersion = 2, kFirstVersion = 1;  // 2: records of weights alone
constexpr uint64_t kSeed = 1;                       // of checksums, in all versions
constexpr char kMagic[8] = {'G', 'S', 'R', 'O', 'W', 'S', '\r', '\n'};
constexpr uint32_t kMostFloats = 1 << 21, kMostParts = 64;
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
    uint32_t record, parts;            // from version 2 on; in version 1 the checksum is here
    uint32_t part_widths[kMostParts];
    uint64_t checksum;                 // of all members before it

    std::size_t covered() const { return version == kFirstVersion ? offsetof(Tail, record) : offsetof(Tail, checksum); }
    std::size_t size() const { return covered() + sizeof checksum; }
};

uint64_t checksum_of(const void* bytes, std::size_t size) {
    return xxh64(static_cast<const char*>(bytes), size, kSeed);
}

void write_all(int descriptor, const std::byte* bytes, std::size_t size, uint64_t offset, const std::string& path) {
    while (size) {
        ssize_t done = 0;
        int error = 0;
        in_background_turn([&] {
            done = ::pwrite(descriptor, bytes, std::min(size, kBackgroundBytes), static_cast<off_t>(offset));
            error = errno;
        });
        if (done < 0 && error == EINTR) continue;
        if (done <= 0) throw RowWriteError(path, "cannot be written", done < 0 ? error : ENOSPC);
        bytes += done, offset += static_cast<uint64_t>(done), size -= static_cast<std::size_t>(done);
    }
}

void read_all(int descriptor, std::byte* bytes, std::size_t size, uint64_t offset, const std::string& path) {
    if (const int error = read_whole(descriptor, bytes, size, offset)) throw_read_error(path, error);
}

bool all_zero(const std::byte* begin, const std::byte* end) {
    return std::all_of(begin, end, [](std::byte each) { return each == std::byte{0}; });
}

bool are_widths(std::span<const uint32_t> parts) {
    const auto possible = [](uint32_t part) { return part > 0 && part <= kMostFloats; };
    return std::all_of(parts.begin(), parts.end(), possible) &&
           std::accumulate(parts.begin(), parts.end(), uint64_t{0}) <= kMostFloats;
}

}  // namespace

RowIoError::RowIoError(const std::string& file, const char* what, int errno_value)
    : std::runtime_error(file + " " + what + ": " + std::strerror(errno_value)), path(file), code(errno_value) {}

void throw_read_error(const std::string& path, int error) {
    if (error < 0) throw RowFileError(path + " is damaged: it ends early");
    throw RowIoError(path, "cannot be read", error);
}

int open_file(const std::string& path, int flags, bool cached) {
    int descriptor = ::open(path.c_str(), flags | (cached ? 0 : O_DIRECT) | O_CLOEXEC, 0666);
    if (descriptor < 0 && !cached && errno == EINVAL) descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor < 0 && flags & O_CREAT) throw RowWriteError(path, "cannot be created", errno);
    if (descriptor < 0) throw RowIoError(path, "cannot be opened", errno);
    return descriptor;
}

int open_direct(const std::string& path, int flags) { return open_file(path, flags, /*cached=*/false); }

uint64_t chained(uint64_t checksum, uint64_t block_checksum) { return mix(checksum + 1) ^ block_checksum; }

RowFileShape::RowFileShape(uint32_t weight_count, uint32_t state_count, uint64_t layout)
    : weights(weight_count),
      states(state_count),
      record_bytes(static_cast<uint32_t>(sizeof(RowMeta) + (weight_count + state_count) * sizeof(float))),
      layout_hash(layout) {
    fit_blocks();
}

RowFileShape::RowFileShape(RowRecord precision, std::vector<uint32_t> part_widths)
    : record(precision), parts(std::move(part_widths)) {
    const RowCodec codec(precision, parts);
    weights = codec.width();
    record_bytes = codec.record_bytes();
    layout_hash = xxh64(reinterpret_cast<const char*>(parts.data()), parts.size() * sizeof(uint32_t), static_cast<uint64_t>(record));
    fit_blocks();
}

void RowFileShape::fit_blocks() {
    const std::size_t one_row = kBlockHead + sizeof(int64_t) + record_bytes;
    block_bytes = static_cast<uint32_t>(in_disk_blocks(one_row));
    rows_per_block = static_cast<uint32_t>((block_bytes - kBlockHead) / (sizeof(int64_t) + record_bytes));
}

// ---- reading ----

RowFile::RowFile(std::string path, const RowFileShape* expected, bool cached) : path_(std::move(path)) {
    descriptor_ = open_file(path_, O_RDONLY, cached);
    if (cached) ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
    try {
        read_footer(expected);
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

RowFile::~RowFile() {
    ::close(descriptor_);
    if (remove_) ::unlink(path_.c_str());
}

RowFileFacts RowFileFacts::read(int descriptor, const std::string& path) {
    RowFileFacts facts;
    struct stat status;
    if (::fstat(descriptor, &status) != 0) throw RowIoError(path, "cannot be read", errno);
    facts.bytes = static_cast<uint64_t>(status.st_size);
    if (facts.bytes < kDiskBlock || facts.bytes % kDiskBlock) throw RowFileError(path + " is damaged: it is cut short");
    AlignedBytes last(kDiskBlock);
    read_all(descriptor, last.data(), kDiskBlock, facts.bytes - kDiskBlock, path);
    Tail tail;
    std::memcpy(&tail, last.data(), sizeof tail);
    const bool readable = tail.version >= kFirstVersion && tail.version <= kVersion;
    if (std::memcmp(tail.magic, kMagic, sizeof kMagic) == 0 && !readable)
        throw RowFileError(path + " has version " + std::to_string(tail.version) + " of the row file format, which this "
                           "version of Gearshift cannot read (" + std::to_string(kFirstVersion) + " to " +
                           std::to_string(kVersion) + "), or it is damaged");
    std::memcpy(&facts.checksum, last.data() + tail.covered(), sizeof facts.checksum);
    if (std::memcmp(tail.magic, kMagic, sizeof kMagic) != 0 || facts.checksum != checksum_of(&tail, tail.covered()) ||
        !all_zero(last.data() + tail.size(), last.data() + kDiskBlock))
        throw RowFileError(path + " is damaged, or not a row file");
    if (tail.version == kFirstVersion) tail.record = tail.parts = 0;
    const bool narrow = tail.weights <= kMostFloats && tail.states <= kMostFloats && tail.parts <= kMostParts;
    if (!narrow || !are_widths({tail.part_widths, tail.parts})) throw RowFileError(path + " is damaged: its rows are too wide");
    if (tail.record == static_cast<uint32_t>(RowRecord::training))
        facts.shape = RowFileShape(tail.weights, tail.states, tail.layout_hash);
    else if (tail.record <= static_cast<uint32_t>(RowRecord::int8) && tail.parts)
        facts.shape = RowFileShape(static_cast<RowRecord>(tail.record), {tail.part_widths, tail.part_widths + tail.parts});
    else
        throw RowFileError(path + " has rows of a kind that this version of Gearshift cannot read");
    facts.rows = tail.rows, facts.tombstones = tail.tombstones;
    facts.blocks = tail.blocks, facts.filter_words = tail.filter_words;
    facts.blocks_checksum = tail.blocks_checksum, facts.footer_checksum = tail.footer_checksum;
    facts.check_counts(path);
    return facts;
}

// A valid checksum does not mean that a writer of ours computed it. First what keeps the other sums from overflowing.
void RowFileFacts::check_counts(const std::string& path) const {
    if (blocks > bytes / shape.block_bytes || filter_words > bytes / sizeof(uint32_t) ||
        footer_offset() + in_disk_blocks(footer_bytes()) + kDiskBlock != bytes)
        throw RowFileError(path + " is damaged: its size is wrong");
    if (!MembershipFilter::can_have(filter_words)) throw RowFileError(path + " is damaged: the size of its filter is wrong");
    if (rows < blocks || rows > blocks * shape.rows_per_block || tombstones > rows)
        throw RowFileError(path + " is damaged: its number of rows is wrong");
}

void RowFileFacts::verify_footer(const std::byte* footer, const std::string& path) const {
    const uint64_t size = footer_bytes();
    if (checksum_of(footer, size) != footer_checksum || !all_zero(footer + size, footer + in_disk_blocks(size)))
        throw RowFileError(path + " is damaged: the checksum of its index is wrong");
    const std::span fences(reinterpret_cast<const uint64_t*>(footer), blocks);
    if (std::adjacent_find(fences.begin(), fences.end(), std::greater_equal<>()) != fences.end())
        throw RowFileError(path + " is damaged: the blocks in its index are not in order");
}

void RowFileFacts::verify_blocks(uint64_t checksum_of_blocks, uint64_t rows_in_blocks, const std::string& path) const {
    if (checksum_of_blocks != blocks_checksum)
        throw RowFileError(path + " is damaged: its blocks are not those that were written");
    if (rows_in_blocks != rows)
        throw RowFileError(path + " is damaged: it has " + std::to_string(rows_in_blocks) + " rows and not " + std::to_string(rows));
}

void RowFile::read_footer(const RowFileShape* expected) {
    facts_ = RowFileFacts::read(descriptor_, path_);
    if (expected && (shape().layout_hash != expected->layout_hash || shape().record_bytes != expected->record_bytes))
        throw RowFileError(path_ + " holds rows of other widths or another optimizer");
    AlignedBytes bytes(facts_.footer_bytes());
    read_all(descriptor_, bytes.data(), bytes.size(), facts_.footer_offset(), path_);
    facts_.verify_footer(bytes.data(), path_);
    fences_.resize(facts_.blocks);
    std::memcpy(fences_.data(), bytes.data(), facts_.blocks * sizeof(uint64_t));
    std::vector<uint32_t> words(facts_.filter_words);
    std::memcpy(words.data(), bytes.data() + facts_.blocks * sizeof(uint64_t), words.size() * sizeof(uint32_t));
    filter_ = MembershipFilter(std::move(words));
}

std::size_t RowFile::memory_bytes() const {
    return sizeof *this + fences_.capacity() * sizeof(uint64_t) + filter_.words().capacity() * sizeof(uint32_t);
}

// Keys are evenly distributed, so the block is near its share of the range; then ever larger steps from there.
int64_t block_of_key(std::span<const uint64_t> fences, uint64_t key) {
    if (fences.empty() || key < fences.front()) return -1;
    const double range = static_cast<double>(fences.back() - fences.front()) + 1;
    const auto last = static_cast<int64_t>(fences.size()) - 1;
    const double guess = static_cast<double>(key - fences.front()) / range * static_cast<double>(last);
    const auto fence = [&](int64_t block) { return fences[static_cast<std::size_t>(block)]; };
    int64_t low = std::min(static_cast<int64_t>(guess), last), high = low;
    for (int64_t step = 8; low > 0 && fence(low) > key; step *= 4) high = low, low = std::max<int64_t>(0, low - step);
    for (int64_t step = 8; high <= last && fence(high) <= key; step *= 4) low = high, high = std::min(last + 1, high + step);
    return std::upper_bound(fences.begin() + low, fences.begin() + high, key) - fences.begin() - 1;
}

uint64_t verified_checksum(const RowFileShape& shape, const std::byte* block, uint32_t number, uint64_t fence,
                           const std::string& path) {
    BlockHead head;
    std::memcpy(&head, block, sizeof head);
    const std::size_t skipped = sizeof head.checksum;
    const bool as_written = head.checksum == checksum_of(block + skipped, shape.block_bytes - skipped) && head.rows > 0 &&
                            head.rows <= shape.rows_per_block;
    // A block of another place would pass as a whole one, and its rows would seem not to exist.
    if (!as_written || mix(static_cast<uint64_t>(row_in_block(shape, block, 0).id)) != fence)
        throw RowFileError(path + " is damaged: the checksum of block " + std::to_string(number) + " is wrong");
    return head.checksum;
}

uint32_t rows_in_block(const std::byte* block) { return reinterpret_cast<const BlockHead*>(block)->rows; }

StoredRow row_in_block(const RowFileShape& shape, const std::byte* block, int64_t i) {
    uint64_t marked;
    std::memcpy(&marked, block + kBlockHead + static_cast<uint64_t>(i) * sizeof marked, sizeof marked);
    const std::byte* record =
        block + kBlockHead + shape.rows_per_block * sizeof marked + static_cast<uint64_t>(i) * shape.record_bytes;
    return {static_cast<int64_t>(marked & ~kTombstone), marked & kTombstone ? nullptr : record};
}

int64_t RowFile::find(const std::byte* block, int64_t id) const {
    const uint32_t rows = rows_in(block);
    const std::byte* ids = block + kBlockHead;
    for (uint32_t i = 0; i < rows; ++i) {
        uint64_t marked;
        std::memcpy(&marked, ids + i * sizeof marked, sizeof marked);
        if (static_cast<int64_t>(marked & ~kTombstone) == id) return i;
    }
    return -1;
}

// ---- writing ----

RowFileWriter::RowFileWriter(std::string path, const RowFileShape& shape, uint64_t expected_rows, bool cached)
    : path_(std::move(path)),
      part_(path_ + ".part"),
      shape_(shape),
      buffer_(std::max<std::size_t>(kBackgroundBytes / shape.block_bytes, 1) * shape.block_bytes),
      filter_(expected_rows == kRowsUnknown ? 0 : expected_rows),
      rows_unknown_(expected_rows == kRowsUnknown),
      cached_(cached) {
    if (std::max(shape.weights, shape.states) > kMostFloats || shape.parts.size() > kMostParts) throw RowFileError("a row is too wide for a row file");
    descriptor_ = open_file(part_, O_WRONLY | O_CREAT | O_TRUNC, cached_);
    if (!rows_unknown_) fences_.reserve(expected_rows / shape.rows_per_block + 1);
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
    if (id < 0) throw std::invalid_argument("an id is 0 or more, not " + std::to_string(id));
    if (rows_ && key <= last_key_) throw std::invalid_argument("rows are written in the order of their hashed ids, each id once");
    last_key_ = key;
    if (in_block_ == 0) fences_.push_back(key);
    if (rows_unknown_)
        keys_.push_back(key);
    else
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
    if (cached_) ::sync_file_range(descriptor_, static_cast<off_t>(written_), static_cast<off_t>(filled_), SYNC_FILE_RANGE_WRITE);
    written_ += filled_;
    filled_ = 0;
    std::memset(buffer_.data(), 0, buffer_.size());
}

void RowFileWriter::write_footer() {
    const std::size_t fences = fences_.size() * sizeof(uint64_t), filter = filter_.words().size() * sizeof(uint32_t);
    AlignedBytes footer(in_disk_blocks(fences + filter) + kDiskBlock);
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
    tail.record = static_cast<uint32_t>(shape_.record);
    tail.parts = static_cast<uint32_t>(shape_.parts.size());
    std::copy(shape_.parts.begin(), shape_.parts.end(), tail.part_widths);
    tail.checksum = checksum_of(&tail, offsetof(Tail, checksum));
    std::memcpy(footer.data() + footer.size() - kDiskBlock, &tail, sizeof tail);
    write_all(descriptor_, footer.data(), footer.size(), written_, part_);
}

std::shared_ptr<RowFile> RowFileWriter::finish() {
    if (in_block_) close_block();
    flush();
    if (rows_unknown_) filter_ = MembershipFilter(keys_.size());
    for (uint64_t key : keys_) filter_.add(key);
    write_footer();
    if (::rename(part_.c_str(), path_.c_str()) != 0) throw RowWriteError(path_, "cannot be written", errno);
    ::close(descriptor_);
    descriptor_ = -1;
    try {
        return std::make_shared<RowFile>(path_, &shape_, cached_);
    } catch (const RowIoError& error) {  // for example, too many open files
        ::unlink(path_.c_str());
        throw RowWriteError(path_, "cannot be opened", error.code);
    } catch (...) {
        ::unlink(path_.c_str());
        throw;
    }
}

}  // namespace gearshift
