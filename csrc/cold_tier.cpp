#include "cold_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "disk_schedule.h"
#include "heap_trim.h"
#include "row_scan.h"

namespace gearshift {
namespace {

constexpr std::size_t kRunsPerLevel = 8, kMostToWrite = kColdGroups;
constexpr std::size_t kMostRuns = 32;  // runs of a group; with more, merging precedes writing: a lookup asks each filter
constexpr std::size_t kMostUnwritten = 8 * kMostToWrite;  // buffers; as much as half of the budget beyond it
constexpr auto kTolerated = std::chrono::milliseconds(2000);  // how long writing may fail before an error
constexpr auto kWriteAgainAfter = std::chrono::milliseconds(500), kMergeAgainAfter = std::chrono::milliseconds(10'000);
constexpr auto kLookAgainAfter = std::chrono::seconds(kHeapLookSeconds);
constexpr auto kMeasureAgainAfter = std::chrono::minutes(10);
constexpr uint64_t kMeasuredBytes = 16 << 20;  // least size of a file on which the disk is measured
constexpr uint32_t kFewestBufferRows = 16, kMostBufferRows = 1 << 20;

struct Stopped {};

std::vector<uint32_t> in_key_order(const RowBuffer& buffer) {
    std::vector<uint32_t> order(buffer.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key_of(buffer.id(a)) < key_of(buffer.id(b)); });
    return order;
}

}  // namespace

ColdTier::ColdTier(std::string folder, const RowFileShape& shape, const ColdMemory& memory, Ended ended)
    : folder_(std::move(folder)),
      shape_(shape),
      memory_(memory),
      buffer_rows_(static_cast<uint32_t>(std::clamp<std::size_t>(
          memory.buffers / (2 * kColdGroups) / (shape.record_bytes + 24), kFewestBufferRows, kMostBufferRows))),
      ended_(std::move(ended)) {
    for (Group& group : groups_) group.active = std::make_unique<RowBuffer>(buffer_rows_, shape.record_bytes);
    writer_ = std::thread([this] { write_in_background(); });
}

void ColdTier::stop() {
    {
        std::lock_guard held(work_lock_);
        stopping_ = true;
    }
    work_changed_.notify_all();
    if (writer_.joinable()) writer_.join();
}

ColdTier::~ColdTier() {
    stop();
    for (Group& group : groups_)
        for (ColdView::Run& run : group.runs) run.file->remove_when_unused();
}

// ---- writing ----

void ColdTier::throw_failure() const {
    std::lock_guard held(work_lock_);
    std::rethrow_exception(failure_);
}

void ColdTier::check() const {
    if (failed_) throw_failure();
}

void ColdTier::put(int64_t id, const std::byte* record, bool replaces_stored) {
    check();
    if (unwritten_ > kMostToWrite) wait_for_room();  // before the record is taken, because it may throw
    const uint32_t g = group_of(key_of(id));
    Group& group = groups_[g];
    bool sealed = false;
    {
        std::lock_guard held(group.lock);
        if (group.active->full()) seal(g), sealed = true;
        const bool is_new = group.active->find(id) < 0;  // otherwise the older record never reaches a file
        group.active->put(id, record);
        if (is_new) group.stale += replaces_stored + (record == nullptr);
    }
    rows_put_.fetch_add(1, std::memory_order_relaxed);
    if (sealed) will_write(g);
}

void ColdTier::will_write(uint32_t g) {
    std::lock_guard held(work_lock_);
    to_write_.push_back(g);
    unwritten_ = to_write_.size();
    work_changed_.notify_all();
}

void ColdTier::wait_for_room() {
    std::unique_lock held(work_lock_);
    work_changed_.wait(held, [this] { return to_write_.size() <= kMostToWrite || failure_ || write_failure_ || stopping_; });
    if (failure_) std::rethrow_exception(failure_);
    if (write_failure_ && to_write_.size() > kMostUnwritten) std::rethrow_exception(write_failure_);
}

std::string ColdTier::write_failure() const {
    std::lock_guard held(work_lock_);
    const bool lasts = Clock::now() - write_failed_at_ >= kTolerated || to_write_.size() > kMostUnwritten / 2;
    try {
        if (failure_) std::rethrow_exception(failure_);
        if (write_failure_ && lasts) std::rethrow_exception(write_failure_);
    } catch (const std::exception& error) {
        return error.what();
    }
    return {};
}

void ColdTier::seal(uint32_t g) {
    Group& group = groups_[g];
    auto fresh = std::make_unique<RowBuffer>(buffer_rows_, shape_.record_bytes);
    group.sealed.reserve(group.sealed.size() + 1);
    group.sealed.insert(group.sealed.begin(), std::shared_ptr<const RowBuffer>(std::move(group.active)));
    group.active = std::move(fresh);
}

void ColdTier::write_in_background() {
    work_in_background();
    std::unique_lock held(work_lock_);
    while (!stopping_ && !failure_) {
        busy_ = true;
        held.unlock();
        bool worked = false;
        std::exception_ptr failure, write_failure;
        try {
            worked = work();
        } catch (const RowWriteError&) {
            write_failure = std::current_exception();
        } catch (const Stopped&) {
        } catch (...) {
            failure = std::current_exception();
        }
        held.lock();
        failure_ = failure;
        failed_ = failure != nullptr;
        if (write_failure && !write_failure_) write_failed_at_ = Clock::now();
        if (write_failure) write_failure_ = write_failure;
        busy_ = false;
        work_changed_.notify_all();
        if (write_failure)
            work_changed_.wait_for(held, kWriteAgainAfter, [this] { return stopping_.load(); });
        else if (!worked && !failure_ && !stopping_ && to_write_.empty())
            work_changed_.wait_for(held, kLookAgainAfter);
    }
}

bool ColdTier::work() {
    trim_heap_if_grown(memory_.slack);
    uint32_t group = kColdGroups;
    {
        std::lock_guard looking(work_lock_);
        if (!to_write_.empty()) group = to_write_.front();
    }
    if (merge_if_due(kMostRuns)) return true;
    if (group == kColdGroups) return merge_if_due(0) || measure_disk_if_due();
    write_oldest(group);
    std::lock_guard held(work_lock_);
    to_write_.pop_front();
    unwritten_ = to_write_.size();
    write_failure_ = nullptr;
    return true;
}

// A merge needs room for a second copy of its rows. Without it, lookups are slower but right.
bool ColdTier::merge_if_due(std::size_t fewest_runs) {
    if (Clock::now() < merge_again_) return false;
    std::exception_ptr failure;
    bool merged = false;
    try {
        merged = merge_one(fewest_runs);
    } catch (const RowWriteError&) {
        failure = std::current_exception();
        merge_again_ = Clock::now() + kMergeAgainAfter;
    }
    std::lock_guard held(work_lock_);
    merge_failure_ = failure;
    return merged;
}

// The disk may be shared, and its rates change.
bool ColdTier::measure_disk_if_due() {
    if (Clock::now() < measure_at_) return false;
    std::shared_ptr<RowFile> largest;
    for (Group& group : groups_) {
        std::lock_guard held(group.lock);
        for (const ColdView::Run& run : group.runs)
            if (!largest || run.file->bytes() > largest->bytes()) largest = run.file;
    }
    if (!largest || largest->bytes() < kMeasuredBytes) return false;
    measure_at_ = Clock::now() + kMeasureAgainAfter;
    try {
        plan_ = measured_plan(largest->path(), memory_.reading);
    } catch (const RowIoError&) {  // a lookup that needs the file says so
    }
    return true;
}

void ColdTier::write_oldest(uint32_t g) {
    Group& group = groups_[g];
    std::shared_ptr<const RowBuffer> buffer;
    {
        std::lock_guard held(group.lock);
        buffer = group.sealed.back();
    }
    RowFileWriter writer(new_path(g), shape_, buffer->size());
    for (uint32_t i : in_key_order(*buffer)) writer.add(buffer->id(i), buffer->record(i));
    std::shared_ptr<RowFile> file = writer.finish();
    bytes_written_.fetch_add(file->bytes(), std::memory_order_relaxed);
    bytes_flushed_.fetch_add(file->bytes(), std::memory_order_relaxed);
    std::lock_guard held(group.lock);
    group.runs.insert(group.runs.begin(), run_of(file));
    group.sealed.pop_back();
    group.stored += file->rows();
}

// The index of a file is in memory as long as anyone uses the file: a cut may keep one that was merged long ago.
ColdView::Run ColdTier::run_of(const std::shared_ptr<RowFile>& file) {
    const std::size_t bytes = file->memory_bytes();
    index_bytes_ += bytes;
    const auto let_go = [this, bytes, held = file](RowFile*) mutable {
        held.reset();
        index_bytes_ -= bytes;
    };
    return {std::shared_ptr<RowFile>(file.get(), let_go), level_of(file->rows())};
}

// A run of level n has up to 8^n times the rows of a buffer. Levels follow from sizes, so a merge that drops many stale rows
// does not make its result look larger than it is.
uint32_t ColdTier::level_of(uint64_t rows) const {
    uint32_t level = 0;
    for (uint64_t most = buffer_rows_; rows > most; most *= kRunsPerLevel) ++level;
    return level;
}

// All runs of a group if more than half of its rows are stale; otherwise the newest neighbours of one level, if there are
// enough of them.
ColdTier::RunRange ColdTier::runs_to_merge(const Group& group) const {
    // With expiry, even a single run is merged, to drop its expired rows.
    const std::size_t runs = group.runs.size(), fewest = ended_ ? 1 : 2;
    if (runs >= fewest && group.stored > 2 * group.live() + buffer_rows_) return {0, runs};
    for (std::size_t begin = 0, end; begin < runs; begin = end) {
        for (end = begin; end < runs && group.runs[end].level == group.runs[begin].level;) ++end;
        if (end - begin >= kRunsPerLevel) return {begin, end};
    }
    return {};
}

bool ColdTier::merge_one(std::size_t fewest_runs) {
    for (uint32_t g = 0; g < kColdGroups; ++g) {
        RunRange range;
        {
            std::lock_guard held(groups_[g].lock);
            if (groups_[g].runs.size() >= fewest_runs) range = runs_to_merge(groups_[g]);
        }
        if (range.size()) return merge(g, range), true;
    }
    return false;
}

// Only the writer thread changes `runs`, so the range stays valid in the meantime.
void ColdTier::merge(uint32_t g, RunRange range) {
    Group& group = groups_[g];
    std::vector<ColdView::Run> merged;
    bool oldest;
    uint64_t live;
    {
        std::lock_guard held(group.lock);
        const auto first = group.runs.begin() + static_cast<std::ptrdiff_t>(range.begin);
        merged.assign(first, first + static_cast<std::ptrdiff_t>(range.size()));
        oldest = range.end == group.runs.size();
        live = group.live();
    }
    uint64_t before = 0, ended = 0;
    std::vector<RowScan> scans;
    scans.reserve(merged.size());
    for (const ColdView::Run& run : merged) {
        scans.emplace_back(*run.file, memory_.merging / merged.size());
        before += run.file->rows();
    }
    const bool whole = oldest && range.begin == 0;
    RowFileWriter writer(new_path(g), shape_, whole ? std::clamp(live, before / 2, before) : before);
    each_newest(scans, [&](const StoredRow& row) {
        if (stopping_) throw Stopped();
        const bool over = oldest && row.record && ended_ && ended_(row.record);
        if (over) ++ended;
        if (row.record ? !over : !oldest) writer.add(row.id, row.record);
    });
    std::shared_ptr<RowFile> file = writer.rows() ? writer.finish() : nullptr;
    merges_.fetch_add(1, std::memory_order_relaxed);
    if (file) bytes_written_.fetch_add(file->bytes(), std::memory_order_relaxed);
    std::lock_guard held(group.lock);
    const auto first = group.runs.begin() + static_cast<std::ptrdiff_t>(range.begin);
    const auto rest = group.runs.erase(first, first + static_cast<std::ptrdiff_t>(range.size()));
    if (file) group.runs.insert(rest, run_of(file));
    const uint64_t after = file ? file->rows() : 0, replaced = before - after - ended;
    group.stored -= before - after;
    group.stale -= std::min(group.stale, replaced);
    if (whole) group.stale = std::min(group.stale, 2 * group.buffered());  // a tombstone counts, and what it replaces
    group.ended = whole ? 0 : group.ended - std::min(group.ended, ended);
    for (const ColdView::Run& run : merged) run.file->remove_when_unused();
}

uint64_t ColdTier::Group::buffered() const {
    uint64_t rows = active->size();
    for (const auto& buffer : sealed) rows += buffer->size();
    return rows;
}

std::string ColdTier::new_path(uint32_t group) {
    return folder_ + "/rows-" + std::to_string(group) + "-" + std::to_string(files_made_.fetch_add(1)) + ".gsr";
}

// ---- state ----

void ColdTier::settle() {
    std::unique_lock held(work_lock_);
    work_changed_.notify_all();
    const auto merging = [this] {
        for (const Group& group : groups_) {
            std::lock_guard looking(group.lock);
            if (runs_to_merge(group).size()) return true;
        }
        return false;
    };
    const auto failed = [this] { return failure_ ? failure_ : write_failure_ ? write_failure_ : merge_failure_; };
    work_changed_.wait(held, [&] { return failed() || (to_write_.empty() && !busy_ && !merging()); });
    if (failed()) std::rethrow_exception(failed());
}

ColdCounts ColdTier::counts() const {
    ColdCounts counts;
    counts.block_reads = block_reads_, counts.bytes_read = bytes_read_, counts.rows_found = rows_found_;
    counts.depth = {read_waits_, reads_in_flight_};
    counts.needless_reads = needless_reads_, counts.rows_put = rows_put_, counts.merges = merges_;
    counts.bytes_written = bytes_written_, counts.bytes_flushed = bytes_flushed_;
    for (const Group& group : groups_) {
        std::lock_guard held(group.lock);
        counts.stored_rows += group.stored, counts.stale_rows += group.stored - group.live(), counts.files += group.runs.size();
        for (const ColdView::Run& run : group.runs)
            counts.file_bytes += run.file->bytes(), counts.index_bytes += run.file->memory_bytes();
    }
    return counts;
}

std::size_t ColdTier::memory_bytes() const {
    std::size_t bytes = sizeof *this + index_bytes_;
    for (const Group& group : groups_) {
        std::lock_guard held(group.lock);
        bytes += group.active->memory_bytes();
        for (const auto& buffer : group.sealed) bytes += buffer->memory_bytes();
    }
    return bytes;
}

}  // namespace gearshift
