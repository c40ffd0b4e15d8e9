// Whole groups of the cold tier: what they hold at one moment, and files that are taken over.
#include <algorithm>
#include <stdexcept>

#include "cold_tier.h"
#include "row_scan.h"

namespace gearshift {

ColdView ColdTier::view(uint32_t g) {
    check();
    Group& group = groups_[g];
    ColdView view;
    bool sealed = false;
    {
        std::lock_guard held(group.lock);
        if (group.active->size()) seal(g), sealed = true;
        view.buffers = group.sealed;
        view.runs = group.runs;
    }
    if (sealed) will_write(g);
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
        group.ended += static_cast<uint64_t>(static_cast<double>(group.live()) * share);
    }
    work_changed_.notify_all();
}

void ColdTier::adopt(uint32_t g, const std::vector<std::shared_ptr<RowFile>>& files, uint64_t live) {
    Group& group = groups_[g];
    std::lock_guard held(group.lock);
    if (!group.runs.empty() || !group.sealed.empty() || group.active->size())
        throw std::invalid_argument("files are taken over by an empty group");
    for (const auto& file : files) {
        group.runs.push_back(run_of(file));
        group.stored += file->rows();
    }
    group.stale = group.stored - live;
}

}  // namespace gearshift
