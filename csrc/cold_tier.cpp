#include "cold_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "block_reader.h"
#include "disk_schedule.h"
#include "row_scan.h"

namespace gearshift {
namespace {

constexpr uint32_t kExtentBytes = 64 << 10, kGapBytes = 8 << 10;  // longer extents and gaps cost more than another read
constexpr std::size_t kRunsPerLevel = 8, kMostToWrite = kColdGroups;
constexpr std::size_t kMostRuns = 32;  // of a group, before merging goes before writing: lookups ask each run's filter
constexpr std::size_t kMostUnwritten = 8 * kMostToWrite;  // buffers; as much as half of the budget beyond it
constexpr auto kTolerated = std::chrono::milliseconds(2000);  // a failure that a retry may mend
constexpr auto kWriteAgainAfter = std::chrono::milliseconds(500), kMergeAgainAfter = std::chrono::milliseconds(10'000);
constexpr uint32_t kFewestBufferRows = 16, kMostBufferRows = 1 << 20;

struct Stopped {};

uint64_t key_of(int64_t id) { return mix(static_cast<uint64_t>(id)); }
uint32_t group_of(uint64_t key) { return partition_of(key) / kGroupPartitions; }

std::vector<uint32_t> in_key_order(const RowBuffer& buffer) {
    std::vector<uint32_t> order(buffer.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key_of(buffer.id(a)) < key_of(buffer.id(b)); });
    return order;
}

}  // namespace

ColdTier::ColdTier(std::string folder, const RowFileShape& shape, std::size_t buffer_bytes)
    : folder_(std::move(folder)),
      shape_(shape),
      buffer_rows_(static_cast<uint32_t>(std::clamp<std::size_t>(
          buffer_bytes / (2 * kColdGroups) / (shape.record_bytes + 24), kFewestBufferRows, kMostBufferRows))) {
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

// ---- lookups ----

struct ColdTier::Wanted {
    uint64_t key;
    int64_t id;
    uint32_t position;
    uint32_t run;     // the file to be read next
    uint32_t block;
};

// One call's way through the files: `aim` finds the next file that may have an id, `read` looks into its block.
class ColdTier::Fetch {
public:
    Fetch(ColdTier& tier, std::span<const int64_t> ids, std::byte* records, uint8_t* found)
        : tier_(tier), shape_(tier.shape_), records_(records), found_(found) {
        wanted_.reserve(ids.size());
        for (uint32_t i = 0; i < ids.size(); ++i) wanted_.push_back({key_of(ids[i]), ids[i], i, 0, 0});
        const auto before = [](const Wanted& a, const Wanted& b) { return a.key < b.key; };
        if (!std::is_sorted(wanted_.begin(), wanted_.end(), before)) std::sort(wanted_.begin(), wanted_.end(), before);
    }

    void run() {
        std::vector<Wanted> in_files;
        in_files.reserve(wanted_.size());
        for (std::size_t begin = 0, end; begin < wanted_.size(); begin = end) {
            const uint32_t g = group_of(wanted_[begin].key);
            for (end = begin + 1; end < wanted_.size() && group_of(wanted_[end].key) == g;) ++end;
            look_into_buffers(g, std::span(wanted_).subspan(begin, end - begin), in_files);
        }
        wanted_ = std::move(in_files);
        aim_all();
        while (!wanted_.empty()) read();  // another round only for ids that a filter wrongly reported
    }

private:
    const std::vector<ColdView::Run>& runs(const Wanted& want) const { return views_[group_of(want.key)].runs; }
    const RowFile& file(const Wanted& want) const { return *runs(want)[want.run].file; }

    void take(const Wanted& want, const std::byte* record) {
        found_[want.position] = record != nullptr;
        if (record) std::memcpy(records_ + std::size_t{want.position} * shape_.record_bytes, record, shape_.record_bytes);
    }

    // Takes what is in the buffers and copies the list of files, at one moment; the others go to `in_files`.
    void look_into_buffers(uint32_t g, std::span<const Wanted> wanted, std::vector<Wanted>& in_files) {
        Group& group = tier_.groups_[g];
        std::lock_guard held(group.lock);
        views_[g].runs = group.runs;
        for (const Wanted& want : wanted) {
            const RowBuffer* in = group.active.get();
            int64_t at = in->find(want.id);
            for (std::size_t b = 0; at < 0 && b < group.sealed.size(); ++b) at = (in = group.sealed[b].get())->find(want.id);
            if (at >= 0)
                take(want, in->record(static_cast<uint32_t>(at)));
            else
                in_files.push_back(want);
        }
    }

    bool aim(Wanted& want) {
        const auto& files = runs(want);
        for (; want.run < files.size(); ++want.run) {
            const RowFile& file = *files[want.run].file;
            if (!file.may_contain(want.key)) continue;
            const int64_t block = file.block_of(want.key);
            if (block < 0) continue;
            want.block = static_cast<uint32_t>(block);
            return true;
        }
        found_[want.position] = 0;
        return false;
    }

    void aim_all() {
        constexpr std::size_t kAhead = 8;
        std::size_t kept = 0;
        for (std::size_t i = 0; i < wanted_.size(); ++i) {
            if (i + kAhead < wanted_.size())
                for (const ColdView::Run& run : runs(wanted_[i + kAhead])) run.file->prefetch(wanted_[i + kAhead].key);
            Wanted want = wanted_[i];
            if (aim(want)) wanted_[kept++] = want;
        }
        wanted_.resize(kept);
    }

    // Neighbouring blocks of a file become one extent if the gap costs less than another read.
    void plan() {
        std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
            const auto file = [](const Wanted& w) { return std::pair(group_of(w.key), w.run); };
            return file(a) != file(b) ? file(a) < file(b) : a.key < b.key;
        });
        extents_.clear(), begins_.clear();
        for (uint32_t i = 0; i < wanted_.size(); ++i) {
            const RowFile& in = file(wanted_[i]);
            const uint64_t offset = in.offset_of(wanted_[i].block), end = offset + shape_.block_bytes;
            if (!extents_.empty() && extents_.back().descriptor == in.descriptor()) {
                Extent& last = extents_.back();
                if (offset <= last.offset + last.bytes + kGapBytes && end - last.offset <= std::max(kExtentBytes, shape_.block_bytes)) {
                    last.bytes = static_cast<uint32_t>(end - last.offset);
                    continue;
                }
            }
            extents_.push_back({in.descriptor(), offset, shape_.block_bytes});
            begins_.push_back(i);
        }
        begins_.push_back(static_cast<uint32_t>(wanted_.size()));
    }

    void read() {
        plan();
        std::vector<Wanted> again;
        uint64_t bytes = 0, rows = 0, needless = 0;
        const LookupOnDisk here;
        BlockReader::of_this_thread().read(extents_, [&](std::size_t e, const std::byte* extent, int error) {
            const RowFile& in = file(wanted_[begins_[e]]);
            if (error) throw_read_error(in, error);
            bytes += extents_[e].bytes;
            int64_t verified = -1;
            for (uint32_t i = begins_[e]; i < begins_[e + 1]; ++i) {
                Wanted& want = wanted_[i];
                const std::byte* block = extent + (in.offset_of(want.block) - extents_[e].offset);
                if (verified != want.block) in.verify(block, want.block), verified = want.block;
                const int64_t row = in.find(block, want.id);
                if (row >= 0) {
                    take(want, in.row(block, static_cast<uint32_t>(row)).record);
                    ++rows;
                } else {
                    ++needless;
                    ++want.run;
                    if (aim(want)) again.push_back(want);
                }
            }
        });
        tier_.block_reads_.fetch_add(extents_.size(), std::memory_order_relaxed);
        tier_.bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
        tier_.rows_found_.fetch_add(rows, std::memory_order_relaxed);
        tier_.needless_reads_.fetch_add(needless, std::memory_order_relaxed);
        wanted_ = std::move(again);
    }

    ColdTier& tier_;
    const RowFileShape& shape_;
    std::byte* records_;
    uint8_t* found_;
    std::array<ColdView, kColdGroups> views_;
    std::vector<Wanted> wanted_;
    std::vector<Extent> extents_;
    std::vector<uint32_t> begins_;  // of each extent, in `wanted_`
};

void ColdTier::fetch(std::span<const int64_t> ids, std::byte* records, uint8_t* found) {
    if (!ids.empty()) Fetch(*this, ids, records, found).run();
}

// ---- writing ----

void ColdTier::throw_failure() {
    std::lock_guard held(work_lock_);
    std::rethrow_exception(failure_);
}

void ColdTier::put(int64_t id, const std::byte* record, bool replaces_stored) {
    if (failed_) throw_failure();
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
    if (!sealed) return;
    std::unique_lock held(work_lock_);
    to_write_.push_back(g);
    work_changed_.notify_all();
    wait_for_room(held);
}

void ColdTier::wait_for_room(std::unique_lock<std::mutex>& held) {
    work_changed_.wait(held, [this] { return to_write_.size() <= kMostToWrite || failure_ || write_failure_ || stopping_; });
    if (failure_) std::rethrow_exception(failure_);
    if (write_failure_ && to_write_.size() > kMostUnwritten) std::rethrow_exception(write_failure_);
}

std::string ColdTier::write_failure() const {
    std::lock_guard held(work_lock_);
    const bool lasts = Clock::now() - write_failed_at_ >= kTolerated || to_write_.size() > kMostUnwritten / 2;
    try {
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
        } catch (...) {
            failure = std::current_exception();
        }
        held.lock();
        failure_ = failure;
        failed_ = failure != nullptr;
        if (write_failure && !write_failure_) write_failed_at_ = Clock::now();
        if (worked || write_failure) write_failure_ = write_failure;
        busy_ = false;
        work_changed_.notify_all();
        if (write_failure)
            work_changed_.wait_for(held, kWriteAgainAfter, [this] { return stopping_.load(); });
        else if (!worked && !failure_ && !stopping_ && to_write_.empty() && Clock::now() < merge_again_)
            work_changed_.wait_until(held, merge_again_);
        else if (!worked && !failure_ && !stopping_ && to_write_.empty())
            work_changed_.wait(held);
    }
}

bool ColdTier::work() {
    uint32_t group = kColdGroups;
    {
        std::lock_guard looking(work_lock_);
        if (!to_write_.empty()) group = to_write_.front();
    }
    if (merge_if_due(kMostRuns)) return true;
    if (group == kColdGroups) return merge_if_due(0);
    write_oldest(group);
    std::lock_guard held(work_lock_);
    to_write_.pop_front();
    return true;
}

// A merge needs room for a second copy of its rows. Without it, lookups are slower but right.
bool ColdTier::merge_if_due(std::size_t fewest_runs) {
    if (Clock::now() < merge_again_) return false;
    try {
        return merge_one(fewest_runs);
    } catch (const RowWriteError&) {
        merge_again_ = Clock::now() + kMergeAgainAfter;
        return false;
    }
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
    group.runs.insert(group.runs.begin(), {file, level_of(file->rows())});
    group.sealed.pop_back();
    group.stored += file->rows();
    index_bytes_ += file->memory_bytes();
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
    const std::size_t runs = group.runs.size();
    const uint64_t live = group.stored > group.stale ? group.stored - group.stale : 0;
    if (runs > 1 && group.stored > 2 * live + buffer_rows_) return {0, runs};
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
    uint64_t live, stale;
    {
        std::lock_guard held(group.lock);
        const auto first = group.runs.begin() + static_cast<std::ptrdiff_t>(range.begin);
        merged.assign(first, first + static_cast<std::ptrdiff_t>(range.size()));
        oldest = range.end == group.runs.size();
        live = group.stored > group.stale ? group.stored - group.stale : 0;
        stale = group.stale;
    }
    uint64_t before = 0;
    std::vector<RowScan> scans;
    scans.reserve(merged.size());
    for (const ColdView::Run& run : merged) {
        scans.emplace_back(*run.file);
        before += run.file->rows();
    }
    const bool whole = oldest && range.begin == 0;
    RowFileWriter writer(new_path(g), shape_, whole ? std::clamp(live, before / 2, before) : before);
    each_newest(scans, [&](const StoredRow& row) {
        if (stopping_) throw Stopped();
        const bool dropped = !row.record || (ended_ && ended_(row.record));
        if (!dropped || !oldest) writer.add(row.id, row.record);
    });
    std::shared_ptr<RowFile> file = writer.rows() ? writer.finish() : nullptr;
    merges_.fetch_add(1, std::memory_order_relaxed);
    if (file) bytes_written_.fetch_add(file->bytes(), std::memory_order_relaxed);
    std::lock_guard held(group.lock);
    const auto first = group.runs.begin() + static_cast<std::ptrdiff_t>(range.begin);
    const auto rest = group.runs.erase(first, first + static_cast<std::ptrdiff_t>(range.size()));
    if (file) group.runs.insert(rest, {file, level_of(file->rows())});
    const uint64_t after = file ? file->rows() : 0, dropped = before - after;
    group.stored -= dropped;
    group.stale -= std::min(group.stale, whole ? std::max(dropped, stale) : dropped);  // `add_stale` is an estimate
    if (file) index_bytes_ += file->memory_bytes();
    for (const ColdView::Run& run : merged) {
        index_bytes_ -= run.file->memory_bytes();
        run.file->remove_when_unused();
    }
}

std::string ColdTier::new_path(uint32_t group) {
    return folder_ + "/rows-" + std::to_string(group) + "-" + std::to_string(files_made_.fetch_add(1)) + ".gsr";
}

// ---- whole partitions ----

ColdView ColdTier::view(uint32_t g) {
    Group& group = groups_[g];
    ColdView view;
    bool sealed = false;
    {
        std::lock_guard held(group.lock);
        if (group.active->size()) seal(g), sealed = true;
        view.buffers = group.sealed;
        view.runs = group.runs;
    }
    if (sealed) {
        std::lock_guard held(work_lock_);
        to_write_.push_back(g);
        work_changed_.notify_all();
    }
    return view;
}

void ColdTier::each(const ColdView& view, uint32_t partition,
                    const std::function<void(int64_t, const std::byte*)>& visit) const {
    const uint64_t begin = uint64_t{partition} << 56, last = begin + ((uint64_t{1} << 56) - 1);
    std::vector<RowScan> scans;
    scans.reserve(view.runs.size());
    for (const ColdView::Run& run : view.runs) scans.push_back(RowScan::of_keys(*run.file, begin, last));
    struct Buffered {
        uint64_t key;
        std::size_t age;
        int64_t id;
        const std::byte* record;
    };
    std::vector<Buffered> buffered;
    for (std::size_t b = 0; b < view.buffers.size(); ++b)
        for (uint32_t i = 0; i < view.buffers[b]->size(); ++i) {
            const int64_t id = view.buffers[b]->id(i);
            if (partition_of(key_of(id)) == partition) buffered.push_back({key_of(id), b, id, view.buffers[b]->record(i)});
        }
    std::sort(buffered.begin(), buffered.end(), [](const Buffered& a, const Buffered& b) {
        return a.key != b.key ? a.key < b.key : a.age < b.age;
    });
    auto next = buffered.begin();
    const auto visit_buffered = [&] {
        const uint64_t key = next->key;
        if (next->record) visit(next->id, next->record);
        while (next != buffered.end() && next->key == key) ++next;
    };
    each_newest(scans, [&](const StoredRow& row) {
        const uint64_t key = key_of(row.id);
        if (key < begin || key > last) return;
        while (next != buffered.end() && next->key < key) visit_buffered();
        if (next != buffered.end() && next->key == key) {
            visit_buffered();
            return;
        }
        if (row.record) visit(row.id, row.record);
    });
    while (next != buffered.end()) visit_buffered();
}

void ColdTier::add_stale(double share) {
    for (Group& group : groups_) {
        std::lock_guard held(group.lock);
        if (group.stored > group.stale) group.stale += static_cast<uint64_t>(static_cast<double>(group.stored - group.stale) * share);
    }
    work_changed_.notify_all();
}

void ColdTier::adopt(uint32_t g, const std::vector<std::shared_ptr<RowFile>>& files, uint64_t live) {
    Group& group = groups_[g];
    std::lock_guard held(group.lock);
    if (!group.runs.empty() || !group.sealed.empty() || group.active->size())
        throw std::invalid_argument("files are taken over by an empty group");
    for (const auto& file : files) {
        group.runs.push_back({file, level_of(file->rows())});
        group.stored += file->rows();
        index_bytes_ += file->memory_bytes();
    }
    group.stale = group.stored - live;
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
    work_changed_.wait(held, [&] { return failure_ || write_failure_ || (to_write_.empty() && !busy_ && !merging()); });
    if (failure_) std::rethrow_exception(failure_);
    if (write_failure_) std::rethrow_exception(write_failure_);
}

ColdCounts ColdTier::counts() const {
    ColdCounts counts;
    counts.block_reads = block_reads_, counts.bytes_read = bytes_read_, counts.rows_found = rows_found_;
    counts.needless_reads = needless_reads_, counts.rows_put = rows_put_, counts.merges = merges_;
    counts.bytes_written = bytes_written_, counts.bytes_flushed = bytes_flushed_;
    for (const Group& group : groups_) {
        std::lock_guard held(group.lock);
        counts.stored_rows += group.stored, counts.stale_rows += group.stale, counts.files += group.runs.size();
        for (const ColdView::Run& run : group.runs)
            counts.file_bytes += run.file->bytes(), counts.index_bytes += run.file->memory_bytes();
    }
    return counts;
}

std::size_t ColdTier::memory_bytes() const {
    std::size_t bytes = sizeof *this;
    for (const Group& group : groups_) {
        std::lock_guard held(group.lock);
        bytes += group.active->memory_bytes();
        for (const auto& buffer : group.sealed) bytes += buffer->memory_bytes();
        for (const ColdView::Run& run : group.runs) bytes += run.file->memory_bytes();
    }
    return bytes;
}

}  // namespace gearshift
