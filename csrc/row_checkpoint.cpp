// Checkpoints of a table with a cold tier. A checkpoint of a group of partitions is a stack of row files, newest first:
// one new file with the rows whose values at the cut are in no other file, and the group's existing files, which never
// change and are hard-linked. So a checkpoint writes only rows in memory that have changed, and a restore only links
// files.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "row_scan.h"
#include "row_table.h"

namespace gearshift {
namespace {

struct Pending {
    uint64_t key;
    int64_t id;
    std::size_t age;  // 0: in memory; then the buffers, newest first
    std::size_t row;
};

}  // namespace

std::vector<std::string> RowTable::write_cut_group(uint32_t g, const std::string& path) {
    std::lock_guard one(cut_lock_);
    if (!cut_open_ || !cold_) throw std::invalid_argument("only an open cut of a table with a cold tier is written as files");
    const ColdView& view = cut_views_.at(g);
    std::size_t most = 0;
    for (uint32_t p = g * kGroupPartitions; p < (g + 1) * kGroupPartitions; ++p) {
        std::lock_guard held(partitions_[p].lock);
        most += partitions_[p].cut ? partitions_[p].cut->live : 0;
    }
    for (const auto& buffer : view.buffers) most += buffer->size();
    RowFileWriter writer(path, cold_->shape(), most);
    std::vector<std::byte> record(cold_->shape().record_bytes);
    for (uint32_t p = g * kGroupPartitions; p < (g + 1) * kGroupPartitions; ++p) {
        const RowBlockData hot = take_cut_partition(p, /*unstored_only=*/true);
        std::vector<Pending> rows;
        for (std::size_t i = 0; i < hot.rows(); ++i) rows.push_back({mix(static_cast<uint64_t>(hot.ids[i])), hot.ids[i], 0, i});
        for (std::size_t b = 0; b < view.buffers.size(); ++b)
            for (uint32_t i = 0; i < view.buffers[b]->size(); ++i) {
                const int64_t id = view.buffers[b]->id(i);
                const uint64_t key = mix(static_cast<uint64_t>(id));
                if (partition_of(key) == p) rows.push_back({key, id, b + 1, i});
            }
        std::sort(rows.begin(), rows.end(), [](const Pending& a, const Pending& b) {
            return a.key != b.key ? a.key < b.key : a.age < b.age;
        });
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (i && rows[i].key == rows[i - 1].key) continue;
            if (rows[i].age) {
                const std::byte* stored = view.buffers[rows[i].age - 1]->record(static_cast<uint32_t>(rows[i].row));
                if (stored || !view.runs.empty()) writer.add(rows[i].id, stored);
            } else {
                hot.to_record(rows[i].row, record.data());
                writer.add(rows[i].id, record.data());
            }
        }
    }
    std::vector<std::string> stack;
    if (writer.rows()) stack.push_back(writer.finish()->path());
    for (const ColdView::Run& run : view.runs) stack.push_back(run.file->path());
    return stack;
}

// The files are read once: every block is verified, and the live rows are counted. Rows of the newest file, which were in
// memory when the checkpoint was taken, are loaded into memory again as long as they fit.
void RowTable::adopt_files(const std::vector<std::string>& paths) {
    if (!cold_) throw std::invalid_argument("a table without a cold tier cannot take over files");
    RowFiles files;
    for (const std::string& path : paths) files.push_back(std::make_shared<RowFile>(path, &cold_->shape()));
    std::vector<RowScan> scans;
    for (const auto& file : files) scans.emplace_back(*file);
    std::array<uint32_t, kPartitions> live{};
    each_newest(scans, [&](const StoredRow& row) {
        live[partition_of(mix(static_cast<uint64_t>(row.id)))] += row.record != nullptr;
    });
    uint32_t group = kColdGroups;
    uint64_t live_rows = 0;
    for (uint32_t p = 0; p < kPartitions; ++p) {
        if (!live[p]) continue;
        if (group != kColdGroups && group != p / kGroupPartitions)
            throw RowFileError(paths.front() + " holds rows of several groups of partitions");
        group = p / kGroupPartitions;
        live_rows += live[p];
    }
    if (group == kColdGroups) return;
    cold_->adopt(group, files, live_rows);
    for (uint32_t p = group * kGroupPartitions; p < (group + 1) * kGroupPartitions; ++p)
        partitions_[p].cold_only.fetch_add(live[p], std::memory_order_relaxed);
    for (RowScan scan(*files.front()); !scan.done(); scan.advance()) {
        if (!scan.row().record) continue;
        Partition& partition = partitions_[partition_of(scan.key())];
        std::lock_guard held(partition.lock);
        if (partition.live.load(std::memory_order_relaxed) >= quota() - quota() / 8) continue;
        const uint32_t home = home_of(scan.key());
        unpack(scan.row().record, shape_.at(partition.insert(scan.row().id, home)));
        uint64_t& place = *partition.find_place(scan.row().id, home);
        place = (place & ~kRowFlags) | kStored;
        partition.cold_only.fetch_sub(1, std::memory_order_relaxed);
    }
}

}  // namespace gearshift
