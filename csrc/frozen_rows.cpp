#include "frozen_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "row_partition.h"
#include "whole_read.h"

namespace gearshift {
namespace {

constexpr std::size_t kChunk = 64;  // ids in flight: their cache misses overlap
constexpr int64_t kNoBlock = -1;

}  // namespace

struct FrozenRows::Probe {
    int64_t id;
    uint64_t key;
    int64_t block;
    uint32_t guess;  // where in the block the row should be, since keys are spread evenly
};

FrozenRows::FrozenRows(std::string path, bool load_it) : path_(std::move(path)) {
    const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw RowIoError(path_, "cannot be opened", errno);
    struct Closes {
        int descriptor;
        ~Closes() { ::close(descriptor); }
    } closes{descriptor};
    facts_ = RowFileFacts::read(descriptor, path_);
    if (facts_.shape.record == RowRecord::training)
        throw RowFileError(path_ + " has rows for training; write rows for serving from it with: gearshift rows");
    load_it ? load(descriptor) : map(descriptor);
    try {
        read_index();
    } catch (...) {
        if (mapping_) ::munmap(mapping_, facts_.bytes);
        throw;
    }
}

FrozenRows::~FrozenRows() {
    if (mapping_) ::munmap(mapping_, facts_.bytes);
}

void FrozenRows::map(int descriptor) {
    void* at = ::mmap(nullptr, facts_.bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) throw RowIoError(path_, "cannot be mapped", errno);
    mapping_ = at;
    bytes_ = static_cast<const std::byte*>(at);
}

void FrozenRows::load(int descriptor) {
    loaded_ = AlignedBytes(facts_.bytes);
    ::madvise(loaded_.data(), loaded_.size(), MADV_HUGEPAGE);
    if (const int error = read_whole(descriptor, loaded_.data(), facts_.bytes, 0)) throw_read_error(path_, error);
    bytes_ = loaded_.data();
}

void FrozenRows::read_index() {
    facts_.verify_footer(bytes_ + facts_.footer_offset(), path_);
    fences_ = {reinterpret_cast<const uint64_t*>(bytes_ + facts_.footer_offset()), facts_.blocks};
    filter_ = {reinterpret_cast<const uint32_t*>(fences_.data() + facts_.blocks), facts_.filter_words};
    verified_ = std::make_unique<std::atomic<uint64_t>[]>(facts_.blocks / 64 + 1);
    if (!mapping_) verify();
}

void FrozenRows::verify() const {
    uint64_t all = 0, rows = 0;
    for (uint32_t b = 0; b < facts_.blocks; ++b) {
        all = chained(all, verified_checksum(facts_.shape, block(b), b, fences_[b], path_));
        rows += rows_in_block(block(b));
        verified_[b / 64].fetch_or(uint64_t{1} << (b % 64), std::memory_order_relaxed);
    }
    facts_.verify_blocks(all, rows, path_);
}

void FrozenRows::verify_once(uint32_t b) const {
    std::atomic<uint64_t>& word = verified_[b / 64];
    const uint64_t bit = uint64_t{1} << (b % 64);
    if (word.load(std::memory_order_relaxed) & bit) return;
    verified_checksum(facts_.shape, block(b), b, fences_[b], path_);
    word.fetch_or(bit, std::memory_order_relaxed);
}

int64_t FrozenRows::find(const Probe& probe) const {
    const std::byte* at = block(static_cast<uint32_t>(probe.block));
    const auto rows = static_cast<int64_t>(rows_in_block(at));
    int64_t i = std::min<int64_t>(probe.guess, rows - 1);
    const auto key_at = [&](int64_t row) { return mix(static_cast<uint64_t>(row_in_block(facts_.shape, at, row).id)); };
    while (i < rows && key_at(i) < probe.key) ++i;
    while (i > 0 && (i == rows || key_at(i) > probe.key)) --i;
    const StoredRow found = row_in_block(facts_.shape, at, i);
    return found.id == probe.id && found.record ? i : -1;
}

void FrozenRows::lookup(std::span<const int64_t> ids, float* out_UW, bool* found_U) const {
    const RowCodec codec(facts_.shape.record, facts_.shape.parts);
    const uint32_t width = codec.width(), per_block = facts_.shape.rows_per_block;
    std::array<Probe, kChunk> probes;
    std::array<int64_t, kChunk> rows;
    for (std::size_t begin = 0; begin < ids.size(); begin += kChunk) {
        const std::size_t n = std::min(kChunk, ids.size() - begin);
        for (std::size_t i = 0; i < n; ++i) {
            const int64_t id = ids[begin + i];
            Probe& probe = probes[i] = {id, mix(static_cast<uint64_t>(id)), kNoBlock, 0};
            if (id < 0 || !MembershipFilter::may_contain(filter_, probe.key)) continue;
            probe.block = block_of_key(fences_, probe.key);
            if (probe.block == kNoBlock) continue;
            const auto at = static_cast<std::size_t>(probe.block);
            const uint64_t first = fences_[at], end = at + 1 == fences_.size() ? ~uint64_t{0} : fences_[at + 1];
            const double share = static_cast<double>(probe.key - first) / (static_cast<double>(end - first) + 1);
            probe.guess = static_cast<uint32_t>(share * per_block);
            __builtin_prefetch(block(static_cast<uint32_t>(probe.block)) + kBlockHead + probe.guess * sizeof(int64_t));
        }
        for (std::size_t i = 0; i < n; ++i) {
            rows[i] = -1;
            if (probes[i].block == kNoBlock) continue;
            verify_once(static_cast<uint32_t>(probes[i].block));
            rows[i] = find(probes[i]);
            if (rows[i] < 0) continue;
            const std::byte* at = block(static_cast<uint32_t>(probes[i].block));
            __builtin_prefetch(row_in_block(facts_.shape, at, rows[i]).record);
        }
        for (std::size_t i = 0; i < n; ++i) {
            float* out = out_UW + (begin + i) * width;
            found_U[begin + i] = rows[i] >= 0;
            if (rows[i] < 0)
                std::fill_n(out, width, 0.0f);
            else
                codec.decode(row_in_block(facts_.shape, block(static_cast<uint32_t>(probes[i].block)), rows[i]).record, out);
        }
    }
}

}  // namespace gearshift
