// The table of rows: id -> row, in 256 partitions by the id's hash, each with its own lock.
//
// A call sorts its ids by partition and locks each partition once; calls may come from many threads at once. Each id is
// processed in input order by one thread, so results do not depend on `threads`. An id that occurs twice in one call is
// safe: a pull returns its row twice, a push updates it twice, a load keeps the last. A cut freezes the rows between two
// pushes while pushes continue: a row's old value and state are saved at its first write until the scan has read its
// partition (no fork, no pause). It knows no Python; misuse throws std::invalid_argument with a message.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "row_kernels.h"
#include "row_layout.h"
#include "row_memory.h"
#include "row_partition.h"

namespace gearshift {

struct RowBlockData {  // complete rows, sorted by id
    std::vector<int64_t> ids;
    std::vector<float> weights, state;
    std::vector<uint32_t> touches, last_step, updates;

    void resize(const RowLayout& layout, std::size_t rows);
};

struct RowBlockView {
    std::span<const int64_t> ids;
    const float *weights, *state;
    const uint32_t *touches, *last_step, *updates;
};

// Many writers at a time, or one cut. A waiting cut blocks new writers, so it never starves.
class Gate {
public:
    void enter();
    void leave();
    void close();  // returns when all writers have left
    void open();

private:
    std::mutex lock_;
    std::condition_variable changed_;
    uint32_t inside_ = 0;
    bool closed_ = false;
};

class RowTable {
public:
    RowTable(const std::vector<PartSpec>& parts, uint64_t seed, bool portable);

    const RowLayout& layout() const { return layout_; }
    std::size_t size() const;
    std::size_t memory_bytes() const;

    void pull(std::span<const int64_t> ids, float* out_UW, uint32_t threads);
    void peek(std::span<const int64_t> ids, float* out_UW, uint32_t threads);
    void push(std::span<const int64_t> ids, const float* sums_UW, const uint32_t* counts_U, double examples,
              uint32_t step, double lr_scale, uint32_t threads);
    void contains(std::span<const int64_t> ids, bool* out_U);
    std::size_t erase(std::span<const int64_t> ids);
    void load(const RowBlockView& block);
    RowBlockData read_partition(uint32_t number);  // current values

    void begin_cut();
    std::size_t cut_size() const { return cut_size_; }
    RowBlockData read_cut_partition(uint32_t number);  // once per partition
    void end_cut();

private:
    using GroupWork = std::function<void(Partition&, const Item*, uint32_t)>;

    void each_group(std::span<const int64_t> ids, uint32_t threads, const GroupWork& work);
    void run_groups(const Item* items, const uint32_t* begins, uint32_t first, uint32_t last, const GroupWork& work);
    std::size_t first_bad(const float* sums_UW, std::size_t rows, float scale, uint32_t threads) const;
    void copy_out(const RowAt& row, RowBlockData& block, std::size_t i) const;
    void copy_in(const RowBlockView& block, std::size_t i, const RowAt& row) const;

    const RowLayout layout_;
    const SlabShape shape_;
    const uint64_t seed_;
    const RowKernels& kernels_;
    std::vector<std::unique_ptr<AdamCorrections>> corrections_;  // per part; null unless Adam
    RowMemory memory_;
    std::array<Partition, kPartitions> partitions_;
    std::atomic<uint32_t> calls_{0};
    Gate gate_;
    std::mutex cut_lock_;  // guards the three below
    bool cut_open_ = false;
    std::atomic<std::size_t> cut_size_{0};
    std::array<bool, kPartitions> cut_read_{};
};

}  // namespace gearshift
