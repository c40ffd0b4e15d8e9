// Rows on disk: row files in 16 groups of partitions, and the rows that are about to be written.
//
//   put --> active buffer --(full)--> sealed buffers --(writer thread)--> files, newest first
//                                                                          8 of similar size are merged into one;
//                                                                          all of a group once half of its rows are stale
//
// The newest record of an id counts: active buffer, sealed buffers, files from new to old. A buffer stays readable until
// its file can be read. A lookup checks the filters in memory and then reads about one block per row; blocks that lie close
// together are read as one extent. Merging and writing ask for a turn on the disk for each request (disk_schedule.h).
// Tombstones are dropped only by merges that include the oldest file: an older record would come back otherwise.
//
// If rows cannot be written (a full disk), they stay readable in up to 128 buffers, beyond the budget, and writing is
// retried: a step in progress is completed, and its caller sees `write_failure` afterwards. Then `put` throws. A merge that
// cannot be written is postponed. What cannot be read is lost; the next `put` throws.
//
// The files are the working state of one process and are removed with it: checkpoints hold all rows. Thread-safe. It
// does not depend on partition locks or hot rows; `RowTable` decides which rows are here.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "block_reader.h"
#include "disk_probe.h"
#include "row_buffer.h"
#include "row_file.h"

namespace gearshift {

constexpr uint32_t kColdGroups = 16;
constexpr uint32_t kGroupPartitions = kPartitions / kColdGroups;

inline uint32_t group_of(uint64_t key) { return partition_of(key) / kGroupPartitions; }

// Bytes of memory for what is not a row in memory or the index of the files.
struct ColdMemory {
    std::size_t buffers = 0;  // rows that are about to be written
    std::size_t reading = 0;  // per reader: blocks on their way from the disk
    std::size_t merging = 0;  // blocks of the files that are being merged
    std::size_t slack = 0;    // what malloc may keep of the whole process's freed memory
};

struct ColdCounts {
    uint64_t block_reads = 0, bytes_read = 0, rows_found = 0, needless_reads = 0;
    QueueDepth depth;
    uint64_t rows_put = 0, bytes_written = 0, bytes_flushed = 0, merges = 0;
    uint64_t stored_rows = 0, stale_rows = 0, files = 0, file_bytes = 0, index_bytes = 0;
};

// The rows of one group at one moment; it stays valid while the tier changes.
struct ColdView {
    struct Run {
        std::shared_ptr<RowFile> file;
        uint32_t level;
    };
    std::vector<std::shared_ptr<const RowBuffer>> buffers;  // newest first, and newer than all files
    std::vector<Run> runs;                                  // newest first
};

class ColdTier {
public:
    using Ended = std::function<bool(const std::byte*)>;
    // The folder must exist and be empty. Rows that have ended, now or at any later time, are left out of merges that include
    // the oldest file; without `ended` none ends.
    ColdTier(std::string folder, const RowFileShape& shape, const ColdMemory& memory, Ended ended = {});
    ~ColdTier();  // removes its files
    ColdTier(const ColdTier&) = delete;
    ColdTier& operator=(const ColdTier&) = delete;

    // The records of these ids, one after another; found[i] is 0 if there is none. Ids may be in any order.
    void fetch(std::span<const int64_t> ids, std::byte* records, uint8_t* found);

    // `replaces_stored`: an older record of the id lies here. A null record is a tombstone. Waits while too
    // much is still to be written. Throws if a file turned out to be damaged, or if far too much cannot be written.
    void put(int64_t id, const std::byte* record, bool replaces_stored);

    ColdView view(uint32_t group);  // throws as `check`
    // Live rows of a partition in the order of mix(id).
    void each(const ColdView& view, uint32_t partition, const std::function<void(int64_t, const std::byte*)>& visit) const;

    void add_stale(double share);  // about this share of the live rows has ended

    // Takes over files in the tier's folder, newest first, with `live` current rows. The group must be empty.
    void adopt(uint32_t group, const std::vector<std::shared_ptr<RowFile>>& files, uint64_t live);

    void stop();  // ends the writer thread; only reading works afterwards
    void check() const;  // throws what made a file unreadable: then rows on disk are lost, and nothing is written any more
    std::string write_failure() const;  // why rows have not been written for a while; empty: they have
    void settle();  // waits until everything is written and merged (for tests and benchmarks)
    ColdCounts counts() const;
    std::size_t memory_bytes() const;
    std::size_t index_bytes() const { return index_bytes_; }  // of fences and filters
    std::size_t scan_bytes(std::size_t files) const { return memory_.merging / files; }  // for each file of a sequential read
    const RowFileShape& shape() const { return shape_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Group {
        mutable std::mutex lock;
        std::unique_ptr<RowBuffer> active;
        std::vector<std::shared_ptr<const RowBuffer>> sealed;  // newest first
        std::vector<ColdView::Run> runs;                       // newest first
        // Rows in the files; of these and of those in the buffers, the ones that others replace, and tombstones; about so many
        // of the others that have ended.
        uint64_t stored = 0, stale = 0, ended = 0;

        uint64_t live() const { return stored - std::min(stored, stale + ended); }
        uint64_t buffered() const;
    };
    struct Wanted;  // an id on its way through the files of its group
    class Fetch;

    void seal(uint32_t group);  // the caller holds the group's lock
    void write_in_background();
    bool work();  // does one piece of it; false: there is none
    bool merge_if_due(std::size_t fewest_runs);
    bool measure_disk_if_due();
    void will_write(uint32_t group);  // its oldest sealed buffer
    void wait_for_room();
    ColdView::Run run_of(const std::shared_ptr<RowFile>& file);
    void write_oldest(uint32_t group);
    bool merge_one(std::size_t fewest_runs);
    struct RunRange {
        std::size_t begin = 0, end = 0;
        std::size_t size() const { return end - begin; }
    };
    RunRange runs_to_merge(const Group& group) const;  // empty: none
    uint32_t level_of(uint64_t rows) const;
    void merge(uint32_t group, RunRange range);
    void throw_failure() const;
    std::string new_path(uint32_t group);

    const std::string folder_;
    const RowFileShape shape_;
    const ColdMemory memory_;
    const uint32_t buffer_rows_;
    std::atomic<ReadPlan> plan_{};
    Clock::time_point measure_at_{};  // of the writer thread
    const Ended ended_;
    std::atomic<std::size_t> index_bytes_{0};  // before the files, whose end changes it
    std::array<Group, kColdGroups> groups_;
    std::atomic<uint64_t> files_made_{0};
    std::atomic<uint64_t> block_reads_{0}, bytes_read_{0}, rows_found_{0}, needless_reads_{0}, read_waits_{0}, reads_in_flight_{0};
    std::atomic<uint64_t> rows_put_{0}, bytes_written_{0}, bytes_flushed_{0}, merges_{0};

    mutable std::mutex work_lock_;  // guards what follows; taken before a group's lock, never after it
    std::condition_variable work_changed_;
    std::deque<uint32_t> to_write_;  // groups, one entry per sealed buffer
    std::atomic<std::size_t> unwritten_{0};  // their number
    std::exception_ptr failure_;        // final
    std::exception_ptr write_failure_, merge_failure_;  // until a retry succeeds
    Clock::time_point write_failed_at_{}, merge_again_{};
    std::atomic<bool> stopping_{false}, failed_{false};  // changed under the lock
    bool busy_ = false;
    std::thread writer_;
};

}  // namespace gearshift
