// Lookups in the cold tier: buffers first, then the files whose filters may have an id, from new to old.
#include <algorithm>
#include <cstring>

#include "block_reader.h"
#include "cold_tier.h"
#include "disk_schedule.h"
#include "row_scan.h"

namespace gearshift {

// Reads that fit into the buffer at once: longer extents would leave too few in flight.
constexpr std::size_t kFewestSlots = 16;

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
        PageVector<Wanted> in_files;
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
    void look_into_buffers(uint32_t g, std::span<const Wanted> wanted, PageVector<Wanted>& in_files) {
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

    // Neighbouring blocks of a file become one extent if the gap costs less than another read: up to a scan of the file.
    void plan() {
        const ReadPlan plan = tier_.plan_;
        const auto longest = static_cast<uint32_t>(std::min<std::size_t>(plan.extent_bytes, tier_.memory_.reading / kFewestSlots));
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
                if (offset <= last.offset + last.bytes + plan.gap_bytes && end - last.offset <= std::max(longest, shape_.block_bytes)) {
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
        PageVector<Wanted> again;
        uint64_t bytes = 0, rows = 0, needless = 0;
        const LookupOnDisk here;
        const QueueDepth depth = read_extents(extents_, tier_.memory_.reading, [&](std::size_t e, const std::byte* extent, int error) {
            const RowFile& in = file(wanted_[begins_[e]]);
            if (error) throw_read_error(in.path(), error);
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
        tier_.read_waits_.fetch_add(depth.waits, std::memory_order_relaxed);
        tier_.reads_in_flight_.fetch_add(depth.in_flight, std::memory_order_relaxed);
        wanted_ = std::move(again);
    }

    ColdTier& tier_;
    const RowFileShape& shape_;
    std::byte* records_;
    uint8_t* found_;
    std::array<ColdView, kColdGroups> views_;
    PageVector<Wanted> wanted_;
    PageVector<Extent> extents_;
    PageVector<uint32_t> begins_;  // of each extent, in `wanted_`
};

void ColdTier::fetch(std::span<const int64_t> ids, std::byte* records, uint8_t* found) {
    if (!ids.empty()) Fetch(*this, ids, records, found).run();
}

}  // namespace gearshift
