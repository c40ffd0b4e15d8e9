// Checkpoints of a table as row files. Without a cold tier, each file has all rows of some partitions. With one, a checkpoint
// of a group of partitions is a stack of files, newest first: one new file with the rows that no file has as they were at the
// cut, and the group's files, which never change and are linked. So such a checkpoint writes only rows in memory that have
// changed, and restoring one links its files again.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "row_birth.h"
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

// About how many rows of each of their partitions are in the files: hashes spread them evenly.
uint32_t rows_per_partition(const RowFiles& files) {
    uint64_t rows = 0, partitions = 1;
    for (const auto& file : files) {
        if (!file->blocks()) continue;
        rows += file->rows();
        const RowScan first(*file, 0, 1), last(*file, file->blocks() - 1, file->blocks());
        partitions = std::max<uint64_t>(partitions, partition_of(last.key()) - partition_of(first.key()) + 1);
    }
    return static_cast<uint32_t>(rows / partitions);
}

}  // namespace

std::vector<std::string> RowTable::write_cut_groups(uint32_t first, uint32_t last, const std::string& path) {
    std::lock_guard one(cut_lock_);
    if (!cut_open_) throw std::invalid_argument("the cut is closed");
    if (first >= last || last > kColdGroups || (cold_ && last - first > 1))
        throw std::invalid_argument("a file has the rows of one group, or of several if there is no cold tier");
    if (std::any_of(cut_read_.begin() + first * kGroupPartitions, cut_read_.end(), [](bool read) { return read; }))
        throw std::invalid_argument("groups of a cut are written in their order: this one or a later one was read already");
    for (uint32_t g = 0; g < first; ++g) cut_views_[g] = {};  // what they keep is in memory beyond the budget
    std::fill_n(cut_read_.begin(), first * kGroupPartitions, true);
    const ColdView& view = cut_views_[first];
    std::size_t most = 0;
    for (uint32_t p = first * kGroupPartitions; p < last * kGroupPartitions; ++p) {
        std::lock_guard held(partitions_[p].lock);
        most += partitions_[p].cut ? partitions_[p].cut->live : 0;
    }
    for (const auto& buffer : view.buffers) most += buffer->size();
    if (most == 0 && view.runs.empty()) return {};
    RowFileWriter writer(path, file_shape(), most, /*cached=*/!cold_);
    for (uint32_t p = first * kGroupPartitions; p < last * kGroupPartitions; ++p) write_cut_partition(p, view, writer);
    std::vector<std::string> stack;
    if (writer.rows()) stack.push_back(writer.finish()->path());
    for (const ColdView::Run& run : view.runs) stack.push_back(run.file->path());
    return stack;
}

// Rows as a pull would create them go straight into a row file, which a table with a cold tier can take over.
void RowTable::write_new_rows(const std::string& path, std::span<const int64_t> ids, const uint32_t* touches) const {
    const auto key = [&](uint32_t i) { return mix(static_cast<uint64_t>(ids[i])); };
    std::vector<uint32_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
    const RowFileShape shape(layout_.width, layout_.state_width, layout_hash());
    std::vector<std::byte> wide(layout_.wide_stride), side(layout_.side_stride), record(shape.record_bytes);
    const RowAt row{wide.data(), side.data()};
    RowFileWriter writer(path, shape, ids.size());
    for (uint32_t i : order) {
        birth_row(layout_, seed_, ids[i], 0, row);
        row.meta().touches = touches[i];
        pack(row, record.data());
        writer.add(ids[i], record.data());
    }
    writer.finish();
}

// The rows that no file has: those in memory, and those in the buffers unless a newer one precedes them.
void RowTable::write_cut_partition(uint32_t number, const ColdView& view, RowFileWriter& writer) {
    const RowBlockData hot = take_cut_partition(number, CutOrder::by_hash);
    std::vector<Pending> rows;
    for (std::size_t i = 0; i < hot.rows(); ++i) rows.push_back({mix(static_cast<uint64_t>(hot.ids[i])), hot.ids[i], 0, i});
    for (std::size_t b = 0; b < view.buffers.size(); ++b)
        for (uint32_t i = 0; i < view.buffers[b]->size(); ++i) {
            const int64_t id = view.buffers[b]->id(i);
            const uint64_t key = mix(static_cast<uint64_t>(id));
            if (partition_of(key) == number) rows.push_back({key, id, b + 1, i});
        }
    if (!view.buffers.empty())  // rows in memory are in order already
        std::sort(rows.begin(), rows.end(), [](const Pending& a, const Pending& b) {
            return a.key != b.key ? a.key < b.key : a.age < b.age;
        });
    std::vector<std::byte> record(file_shape().record_bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i && rows[i].key == rows[i - 1].key) continue;
        if (rows[i].age) {
            write_cut_row(rows[i].id, view.buffers[rows[i].age - 1]->record(static_cast<uint32_t>(rows[i].row)), view, writer);
        } else {
            hot.to_record(rows[i].row, record.data());
            write_cut_row(rows[i].id, record.data(), view, writer);
        }
    }
}

// A row that is over leaves a tombstone, as an erased one, if an older file may have another record of it.
void RowTable::write_cut_row(int64_t id, const std::byte* record, const ColdView& view, RowFileWriter& writer) const {
    if (record && is_over(record, cut_rules_.horizons)) record = nullptr;
    if (record || !view.runs.empty()) writer.add(id, record);
}

void RowTable::load_files(const std::vector<std::string>& paths) {
    if (cold_) throw std::invalid_argument("a table with a cold tier takes over files");
    const Gate::Writer writing(gate_);
    const RowFileShape expected = file_shape();
    RowFiles files;
    for (const std::string& path : paths) files.push_back(std::make_shared<RowFile>(path, &expected, /*cached=*/true));
    const uint32_t expected_rows = rows_per_partition(files);
    std::vector<RowScan> scans;
    for (const auto& file : files) scans.emplace_back(*file);
    uint32_t locked = kPartitions;
    std::unique_lock<std::mutex> held;
    each_newest(scans, [&](const StoredRow& row) {
        if (!row.record || is_over(row.record)) return;
        const uint64_t key = mix(static_cast<uint64_t>(row.id));
        Partition& partition = partitions_[partition_of(key)];
        if (partition_of(key) != locked) {
            held = {};
            held = std::unique_lock(partition.lock);
            locked = partition_of(key);
            partition.reserve(partition.live.load(std::memory_order_relaxed) + expected_rows);
        }
        uint64_t place = partition.find(row.id, home_of(key));
        if (place == kNowhere) place = partition.insert(row.id, home_of(key));
        partition.save_before_write(row.id, place);
        unpack(row.record, shape_.at(place));
        count_row(partition, place, &RowRules::count_row);
    });
}

// The files are read once: every block is verified, and the live rows are counted. Rows of the newest file, which were in
// memory when the checkpoint was taken, are loaded into memory again as long as they fit.
void RowTable::adopt_files(const std::vector<std::string>& paths) {
    if (!cold_) throw std::invalid_argument("a table without a cold tier cannot take over files");
    RowFiles files;
    for (const std::string& path : paths) files.push_back(std::make_shared<RowFile>(path, &cold_->shape()));
    std::vector<RowScan> scans;
    for (const auto& file : files) scans.emplace_back(*file, cold_->scan_bytes(files.size()));
    std::array<uint32_t, kPartitions> live{};
    each_newest(scans, [&](const StoredRow& row) {
        const uint32_t p = partition_of(mix(static_cast<uint64_t>(row.id)));
        live[p] += row.record != nullptr;
        if (!rules_ || !row.record) return;
        RowMeta meta;
        std::memcpy(&meta, row.record, sizeof meta);
        rules_->count_row(p, meta, reinterpret_cast<const float*>(row.record + sizeof meta));
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
