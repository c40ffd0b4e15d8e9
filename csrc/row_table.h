// The table of rows: id -> row, in 256 partitions by the id's hash, each with its own lock.
//
// A call sorts its ids by partition and locks each partition once; calls may come from many threads at once. Each id is
// processed in input order by one thread, so results do not depend on `threads`. An id that occurs twice in one call is
// safe: a pull returns its row twice, a push updates it twice, a load keeps the last. A cut freezes the rows between two
// pushes while pushes continue: a row's old value and state are saved at its first write until the scan has read its
// partition (no fork, no pause). It does not depend on Python; misuse throws std::invalid_argument with a message.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "cold_tier.h"
#include "row_block.h"
#include "row_kernels.h"
#include "row_layout.h"
#include "row_memory.h"
#include "row_partition.h"
#include "row_rules.h"
#include "table_lookups.h"

namespace gearshift {

struct TierCounts {
    uint64_t hot_rows = 0, cold_rows = 0;  // each row once: cold ones are those that are not in memory
    uint64_t lookups = 0, misses = 0;      // of pulls; a miss is an id that was not in memory
    uint64_t prefetched = 0, evicted = 0, written_back = 0, retries = 0;
    ColdCounts disk;
};

constexpr std::ptrdiff_t kMostFetches = 3;  // concurrent fetches: one of the training step, two ahead

struct FetchedRows {  // rows read from the cold tier
    uint32_t record_bytes;
    AlignedBytes records;
    std::vector<uint8_t> found;

    const std::byte* record(std::size_t i) const { return records.data() + i * record_bytes; }
    void move(std::size_t from, std::size_t to) {
        std::memcpy(records.data() + to * record_bytes, record(from), record_bytes);
        found[to] = found[from];
    }
};

// Many writers at a time, or one cut. A waiting cut blocks new writers, so it never starves.
class Gate {
public:
    void enter();
    void leave();
    void close();  // returns when all writers have left
    void open();

    struct Writer {  // inside until it is destroyed
        explicit Writer(Gate& of) : gate(of) { gate.enter(); }
        ~Writer() { gate.leave(); }
        Writer(const Writer&) = delete;
        Writer& operator=(const Writer&) = delete;
        Gate& gate;
    };
    struct Closed {  // until it is destroyed
        explicit Closed(Gate& of) : gate(of) { gate.close(); }
        ~Closed() { gate.open(); }
        Closed(const Closed&) = delete;
        Closed& operator=(const Closed&) = delete;
        Gate& gate;
    };

private:
    std::mutex lock_;
    std::condition_variable changed_;
    uint32_t inside_ = 0;
    bool closed_ = false;
};

enum class CutOrder { by_id, by_hash };

class RowTable {
public:
    // `little_memory`: slabs of rows are small, because a cold tier with a small budget will be added.
    RowTable(const std::vector<PartSpec>& parts, uint64_t seed, bool portable, bool little_memory = false);

    // From now on rows beyond `budget_bytes` go to files in `folder`, an empty folder. Call it once, on an empty table.
    // Returns the number of rows that stay in memory.
    // `hot_rows` sets that number directly, if it is not 0. Lookups are counted for `tables` tables. A shard of `shards`
    // has the ids of its part of the partitions, and divides its memory among these.
    std::size_t add_cold_tier(std::string folder, std::size_t budget_bytes, std::size_t hot_rows, uint32_t tables = 0,
                              uint32_t shards = 1);

    void set_rules(std::vector<RowRule> by_table);  // of admission and expiry; before everything else
    std::vector<RuleCounts> rule_counts();    // by table
    std::vector<uint64_t> rows_by_table();
    void restore_rules(const RuleState& state);  // before any row exists
    const RuleState& cut_rules() const { return cut_rules_; }
    void move_horizons(uint32_t mark, std::span<const uint32_t> horizons);  // by table; see RowRules

    const RowLayout& layout() const { return layout_; }
    std::size_t size() const;
    std::size_t memory_bytes() const;

    // `tables_U`: of each id, kept with its row; null if unknown.
    void pull(std::span<const int64_t> ids, const uint16_t* tables_U, float* out_UW, uint32_t threads);
    void peek(std::span<const int64_t> ids, float* out_UW, uint32_t threads);
    void push(std::span<const int64_t> ids, const uint16_t* tables_U, const float* sums_UW, const uint32_t* counts_U,
              double examples, uint32_t step, double lr_scale, uint32_t threads);
    void contains(std::span<const int64_t> ids, bool* out_U);
    void last_steps(std::span<const int64_t> ids, uint32_t* out_U);  // of the last push; 0 without a row
    std::size_t erase(std::span<const int64_t> ids);
    void load(const RowBlockView& block);
    RowBlockData read_partition(uint32_t number);  // current values

    // Look-ahead (row_lookahead.cpp): brings rows of the cold tier into memory, creates none and changes none.
    void prefetch(std::span<const int64_t> ids);
    void begin_chunk();
    double expect(std::span<const int64_t> ids);  // the share of the memory for a chunk that its rows will take
    bool load_expected();                         // loads a part of them; false: there are no more
    TierCounts tier_counts() const;
    std::vector<TableLookups> lookups_by_table() const { return lookups_ ? lookups_->by_table() : std::vector<TableLookups>(); }
    void settle_cold_tier() { cold_->settle(); }
    std::string cold_write_failure() const {
        const ColdTier* cold = open_cold_.load(std::memory_order_acquire);
        return cold ? cold->write_failure() : std::string();
    }
    void check_cold_tier() const { cold_->check(); }  // throws if rows on disk are lost
    void close_cold_tier() { cold_->stop(); }  // before its folder is removed
    // Takes over the files of one group, newest first, which lie in the tier's folder. The group must be empty.
    void adopt_files(const std::vector<std::string>& paths);
    // A file for `adopt_files` with new rows, which have these numbers of occurrences (`touches`); the ids are distinct and
    // of one group. The table does not change.
    void write_new_rows(const std::string& path, std::span<const int64_t> ids, const uint32_t* touches) const;
    // Loads the rows of a stack of files, newest first, into a table without a cold tier.
    void load_files(const std::vector<std::string>& paths);
    uint64_t layout_hash() const;  // of widths and optimizers

    void begin_cut();
    std::size_t cut_size() const { return cut_size_; }
    RowBlockData read_cut_partition(uint32_t number);  // once per partition
    // The cut of some groups of partitions as row files, newest first: one is written to `path`, unless it would be empty,
    // and the others are the tier's, which exist until a later group is written or the cut ends. Instead of reading the
    // groups' partitions, and in their order. With a cold tier it is one group at a time, because each has files of its own.
    std::vector<std::string> write_cut_groups(uint32_t first, uint32_t last, const std::string& path);
    void end_cut();

private:
    using GroupWork = std::function<void(Partition&, Item*, uint32_t)>;
    using MissingIds = std::function<void(std::span<const Item>)>;
    using Items = PageVector<Item>;

    void each_group(std::span<const int64_t> ids, uint32_t threads, const GroupWork& work);
    void run_groups(Item* items, const uint32_t* begins, uint32_t first, uint32_t last, const GroupWork& work);
    std::size_t first_bad(const float* sums_UW, std::size_t rows, float scale, uint32_t threads) const;
    void copy_out(const RowAt& row, RowBlockData& block, std::size_t i) const;
    void copy_in(const RowBlockView& block, std::size_t i, const RowAt& row) const;

    // Admission and expiry (row_lifetimes.cpp)
    bool is_over(const RowAt& row) const;
    bool is_over(const std::byte* record) const;
    bool is_over(const std::byte* record, std::span<const uint32_t> horizons) const;
    void write_cut_row(int64_t id, const std::byte* record, const ColdView& view, RowFileWriter& writer) const;
    bool exists(const Partition& partition, const Item& item) const;
    void count_row(Partition& partition, uint64_t place, void (RowRules::*as)(uint32_t, const RowMeta&, const float*));
    uint32_t show_ended(Partition& partition, Item* items, uint32_t n, float* out_UW);
    uint32_t admit(const PushCall& call, Partition& partition, Item* items, uint32_t n);
    void push_by_rules(const PushCall& call, Partition& partition, Item* items, uint32_t n);
    void sweep();
    void remove_ended(Partition& partition, int64_t id, uint32_t home);
    RowBlockData living(RowBlockData&& block, std::span<const uint32_t> horizons) const;

    // The cold tier (row_tier.cpp)
    struct Missing;  // the missing rows of one partition
    // `note` is called with the ids that are not in memory, before they are brought in.
    void each_resident_group(std::span<const int64_t> ids, uint32_t threads, Marks marks, const GroupWork& work,
                             const MissingIds& note = [](std::span<const Item>) {});
    void each_split_group(std::span<const int64_t> ids, uint32_t threads, Marks marks, Items& missing, const GroupWork& work);
    void bring_in_all(std::span<Item> missing, Marks marks, const GroupWork& work);
    Items bring_in(std::span<Item> missing, Marks marks, const GroupWork& work);
    void bring_in_locked(std::span<Item> missing, Marks marks, const GroupWork& work);
    void bring_in_ahead(std::span<const int64_t> ids, uint64_t flag);
    std::vector<Missing> missing_by_partition(std::span<Item> missing);
    void work_on_fetched(Partition& partition, std::span<Item> items, const std::byte* records, const uint8_t* found,
                         Marks marks, const GroupWork& work);
    std::vector<int64_t> take_expected();
    FetchedRows fetch(std::span<const Item> items);
    void each_fetched(std::span<const Item> items, const std::function<void(const Item&, const std::byte*)>& visit);
    std::size_t piece_end(std::span<const Item> items, std::size_t begin) const;
    void evict(Partition& partition);
    std::size_t expected_bytes() const { return 2 * expected_ids_ * sizeof(int64_t); }  // their vectors grow by doubling
    std::size_t most_in_memory() const { return std::size_t{quota()} * used_partitions_; }
    uint32_t quota() const;  // rows of a partition in memory
    uint32_t quota(const Partition& partition) const;  // while a cut may be open
    uint32_t slab_rows() const;  // for which a partition keeps slabs beyond those of its rows
    void pack(const RowAt& row, std::byte* record) const;
    void unpack(const std::byte* record, const RowAt& row) const;
    RowBlockData with_cold_rows(RowBlockData&& hot, const ColdView& view, uint32_t partition) const;
    RowFileShape file_shape() const { return {layout_.width, layout_.state_width, layout_hash()}; }
    void write_cut_partition(uint32_t number, const ColdView& view, RowFileWriter& writer);
    std::size_t begin_group_cut(uint32_t group);
    RowBlockData take_cut_partition(uint32_t number, CutOrder order);

    const RowLayout layout_;
    const SlabShape shape_;
    const uint64_t seed_;
    const RowKernels& kernels_;
    std::vector<std::unique_ptr<AdamCorrections>> corrections_;  // per part; null unless Adam
    RowMemory memory_;
    std::array<Partition, kPartitions> partitions_;
    std::atomic<uint32_t> calls_{0};
    Gate gate_;
    std::mutex cut_lock_;  // guards everything whose name begins with `cut_`
    bool cut_open_ = false;
    std::atomic<std::size_t> cut_size_{0};
    std::array<bool, kPartitions> cut_read_{};

    std::unique_ptr<RowRules> rules_;  // null: an id gets a row at once, and keeps it
    RuleState cut_rules_;
    std::atomic<uint32_t> sweeping_{0}, sweep_at_{0};  // partitions to be swept, and the next one

    std::unique_ptr<LookupCounts> lookups_;  // it and the next are null if all rows stay in memory
    std::unique_ptr<ColdTier> cold_;
    std::atomic<ColdTier*> open_cold_{nullptr};  // the same, for threads that may look while it is opened
    std::counting_semaphore<> fetches_{kMostFetches};
    std::size_t hot_bytes_ = 0;       // for rows in memory and the index of the files
    std::size_t rows_at_once_ = 0;    // that a call fetches
    uint32_t used_partitions_ = kPartitions;
    uint32_t fixed_quota_ = 0;        // rows of a partition in memory; 0: as many as fit
    std::array<ColdView, kColdGroups> cut_views_;
    std::mutex chunk_lock_;           // guards `expected_`
    std::atomic<uint32_t> chunk_{0};  // the one that is expected has an even or an odd number
    std::array<std::vector<int64_t>, kColdGroups> expected_;  // ids that are not in memory
    std::atomic<std::size_t> expected_ids_{0};
    std::atomic<uint64_t> prefetched_{0}, evicted_{0}, written_back_{0}, retries_{0};
};

}  // namespace gearshift
