// Looks up weights in one row file that no longer changes, as a server does.
//
// A mapped file costs memory once, however many processes map it, and is read when it is needed; a loaded one is read at
// once. A mapped file must not be cut short or lie on a disk that fails: the system then ends the process. To replace it,
// rename another file to its name: whoever has mapped the old one keeps it.
//
// Each block is verified when it is first used; a loaded file, at once. Thread-safe. It creates no rows: the caller knows
// what an unknown id means.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aligned_bytes.h"
#include "row_file.h"

namespace gearshift {

class FrozenRows {
public:
    FrozenRows(std::string path, bool load);
    ~FrozenRows();
    FrozenRows(const FrozenRows&) = delete;
    FrozenRows& operator=(const FrozenRows&) = delete;

    const RowFileFacts& facts() const { return facts_; }
    uint64_t size() const { return facts_.rows - facts_.tombstones; }

    void verify() const;  // all blocks
    // Weights of the ids, zeros where there is no row.
    void lookup(std::span<const int64_t> ids, float* out_UW, bool* found_U) const;

private:
    struct Probe;
    void map(int descriptor);
    void load(int descriptor);
    void read_index();
    void verify_once(uint32_t block) const;
    int64_t find(const Probe& probe) const;
    const std::byte* block(uint32_t b) const { return bytes_ + uint64_t{b} * facts_.shape.block_bytes; }

    const std::string path_;
    RowFileFacts facts_;
    AlignedBytes loaded_;
    void* mapping_ = nullptr;
    const std::byte* bytes_ = nullptr;
    std::span<const uint64_t> fences_;
    std::span<const uint32_t> filter_;
    std::unique_ptr<std::atomic<uint64_t>[]> verified_;  // a bit per block
};

}  // namespace gearshift
