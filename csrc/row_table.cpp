#include "row_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "parallel.h"
#include "row_birth.h"

namespace gearshift {
namespace {

// Scratch memory that each calling thread keeps, so that calls do not pay for new pages.
struct Grouping {
    std::vector<Item> items;
    std::array<uint32_t, kPartitions + 1> begins;
};

void refuse_negative(std::span<const int64_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0)
            throw std::invalid_argument("ids must be 0 or more (63 bits), but ids[" + std::to_string(i) + "] is " +
                                        std::to_string(ids[i]));
}

// A stable counting sort by partition.
void group(std::span<const int64_t> ids, Grouping& into) {
    if (ids.size() > 0xfffffff0) throw std::invalid_argument("at most 2^32 ids fit in one call");
    std::array<uint32_t, kPartitions> next{};
    int64_t signs = 0;
    for (int64_t id : ids) {
        ++next[partition_of(mix(static_cast<uint64_t>(id)))];
        signs |= id;
    }
    if (signs < 0) refuse_negative(ids);
    into.items.resize(ids.size());
    uint32_t begin = 0;
    for (uint32_t p = 0; p < kPartitions; ++p) {
        into.begins[p] = begin;
        begin += next[p];
        next[p] = into.begins[p];
    }
    into.begins[kPartitions] = begin;
    for (uint32_t i = 0; i < ids.size(); ++i) {
        const uint64_t mixed = mix(static_cast<uint64_t>(ids[i]));
        into.items[next[partition_of(mixed)]++] = {ids[i], i, home_of(mixed)};
    }
}

// Divides the partitions into `pieces` ranges with about equally many ids.
uint32_t range_begin(const Grouping& grouping, uint32_t piece, uint32_t pieces) {
    if (piece == pieces) return kPartitions;
    const uint64_t target = uint64_t{grouping.begins[kPartitions]} * piece / pieces;
    const auto at = std::lower_bound(grouping.begins.begin(), grouping.begins.end() - 1, target);
    return static_cast<uint32_t>(at - grouping.begins.begin());
}

uint32_t pieces_of(std::size_t ids, uint32_t threads) {
    constexpr std::size_t kWorthAPiece = 2048;
    const std::size_t most = threads > 1 ? 4 * threads : 1;
    return static_cast<uint32_t>(std::clamp<std::size_t>(ids / kWorthAPiece, 1, most));
}

}  // namespace

void Gate::enter() {
    std::unique_lock held(lock_);
    changed_.wait(held, [this] { return !closed_; });
    ++inside_;
}

void Gate::leave() {
    std::lock_guard held(lock_);
    if (--inside_ == 0 && closed_) changed_.notify_all();
}

void Gate::close() {
    std::unique_lock held(lock_);
    changed_.wait(held, [this] { return !closed_; });
    closed_ = true;
    changed_.wait(held, [this] { return inside_ == 0; });
}

void Gate::open() {
    std::lock_guard held(lock_);
    closed_ = false;
    changed_.notify_all();
}

RowTable::RowTable(const std::vector<PartSpec>& parts, uint64_t seed, bool portable, bool little_memory)
    : layout_(parts), shape_(layout_, little_memory), seed_(seed), kernels_(portable ? kPortableKernels : best_row_kernels()) {
    for (const PartSpec& part : parts) {
        const bool adam = part.kind == OptimizerKind::adam;
        corrections_.push_back(adam ? std::make_unique<AdamCorrections>(part.beta1, part.beta2) : nullptr);
    }
    for (uint32_t p = 0; p < kPartitions; ++p) partitions_[p].open(shape_, memory_, p);
}

std::size_t RowTable::size() const {
    if (rules_ && rules_->any_expires()) return rules_->rows();
    std::size_t rows = 0;
    for (const Partition& partition : partitions_) {
        std::lock_guard held(partition.lock);  // otherwise a row that moves between the tiers counts twice, or not at all
        rows += partition.live.load(std::memory_order_relaxed) + partition.cold_only.load(std::memory_order_relaxed);
    }
    return rows;
}

std::size_t RowTable::memory_bytes() const {
    std::size_t bytes = sizeof(RowTable) + memory_.allocated();
    for (const Partition& partition : partitions_) {
        std::lock_guard held(partition.lock);
        bytes += partition.overhead_bytes();
    }
    const ColdTier* cold = open_cold_.load(std::memory_order_acquire);
    if (cold) bytes += cold->memory_bytes() + expected_bytes();
    if (rules_) bytes += rules_->memory_bytes();
    return bytes;
}

void RowTable::pull(std::span<const int64_t> ids, const uint16_t* tables_U, float* out_UW, uint32_t threads) {
    const PullCall call{layout_, shape_, seed_, /*create=*/!rules_, tables_U, out_UW};
    const auto work = [&](Partition& p, Item* items, uint32_t n) {
        kernels_.pull(call, p, items, rules_ ? show_ended(p, items, n, out_UW) : n);
    };
    each_resident_group(ids, threads, {kReferenced, 0}, work, [&](std::span<const Item> missing) {
        lookups_->add_pull(ids.size(), tables_U, missing);
    });
}

void RowTable::peek(std::span<const int64_t> ids, float* out_UW, uint32_t threads) {
    const PullCall call{layout_, shape_, seed_, false, nullptr, out_UW};
    const auto work = [&](Partition& p, Item* items, uint32_t n) {
        kernels_.pull(call, p, items, rules_ ? show_ended(p, items, n, out_UW) : n);
    };
    if (!cold_) return each_group(ids, threads, work);
    Items missing;
    each_split_group(ids, threads, {}, missing, work);
    each_fetched(missing, [&](const Item& item, const std::byte* record) {
        float* out = out_UW + std::size_t{item.position} * layout_.width;
        if (record)
            std::memcpy(out, record + sizeof(RowMeta), layout_.width * sizeof(float));
        else
            show_unborn(layout_, seed_, item.id, out);
    });
}

void RowTable::push(std::span<const int64_t> ids, const uint16_t* tables_U, const float* sums_UW, const uint32_t* counts_U,
                    double examples, uint32_t step, double lr_scale, uint32_t threads) {
    if (!(examples > 0) || !std::isfinite(examples)) throw std::invalid_argument("examples must be a positive number");
    if (!(lr_scale >= 0) || !std::isfinite(lr_scale)) throw std::invalid_argument("lr_scale must be 0 or more");
    PushCall call{layout_, shape_, seed_, {}, sums_UW, counts_U, tables_U, static_cast<float>(1.0 / examples), step};
    for (std::size_t p = 0; p < layout_.parts.size(); ++p)
        call.parts.push_back(step_of(layout_.parts[p], lr_scale, corrections_[p].get()));
    const std::size_t floats = ids.size() * layout_.width, bad = first_bad(sums_UW, ids.size(), call.scale, threads);
    if (bad < floats)
        throw std::invalid_argument("the gradient of id " + std::to_string(ids[bad / layout_.width]) + " is " +
                                    std::to_string(sums_UW[bad]) + " in column " + std::to_string(bad % layout_.width) +
                                    ": not finite, or too large to square; nothing was changed");
    const Gate::Writer inside(gate_);
    const Marks marks{kDirty, kReferenced | kInChunk[chunk_ ^ 1]};  // most rows occur once in the chunk that is trained
    each_resident_group(ids, threads, marks, [&](Partition& p, Item* items, uint32_t n) {
        rules_ ? push_by_rules(call, p, items, n) : kernels_.push(call, p, items, n);
    });
    if (!rules_) return;
    rules_->end_push();
    sweep();
}

std::size_t RowTable::first_bad(const float* sums_UW, std::size_t rows, float scale, uint32_t threads) const {
    const uint32_t pieces = pieces_of(rows, threads);
    std::vector<std::size_t> bad(pieces, rows * layout_.width);
    run_pieces(pieces, threads, [&](uint32_t p) {
        const std::size_t begin = rows * p / pieces * layout_.width, end = rows * (p + 1) / pieces * layout_.width;
        const std::size_t found = kernels_.first_bad(sums_UW + begin, end - begin, scale);
        if (found < end - begin) bad[p] = begin + found;
    });
    return *std::min_element(bad.begin(), bad.end());
}

void RowTable::contains(std::span<const int64_t> ids, bool* out_U) {
    if (!cold_)
        return each_group(ids, 1, [&](Partition& partition, Item* items, uint32_t n) {
            for (const Item& item : std::span(items, n))
                out_U[item.position] = exists(partition, item);
        });
    Items missing;
    each_split_group(ids, 1, {}, missing, [&](Partition& partition, Item* items, uint32_t n) {
        for (const Item& item : std::span(items, n)) out_U[item.position] = exists(partition, item);
    });
    each_fetched(missing, [&](const Item& item, const std::byte* record) { out_U[item.position] = record != nullptr; });
}

void RowTable::last_steps(std::span<const int64_t> ids, uint32_t* out_U) {
    const GroupWork look = [&](Partition& partition, Item* items, uint32_t n) {
        for (const Item& item : std::span(items, n)) {
            const bool here = exists(partition, item);
            out_U[item.position] = here ? shape_.at(partition.find(item.id, item.home)).meta().last_step : 0;
        }
    };
    if (!cold_) return each_group(ids, 1, look);
    Items missing;
    each_split_group(ids, 1, {}, missing, look);
    each_fetched(missing, [&](const Item& item, const std::byte* record) {
        RowMeta meta{};
        if (record) std::memcpy(&meta, record, sizeof meta);
        out_U[item.position] = meta.last_step;
    });
}

std::size_t RowTable::erase(std::span<const int64_t> ids) {
    std::size_t erased = 0;
    const Gate::Writer inside(gate_);
    each_resident_group(ids, 1, {}, [&](Partition& partition, Item* items, uint32_t n) {
        for (const Item& item : std::span(items, n)) {
            const uint64_t place = partition.find(item.id, item.home);
            const bool existed = exists(partition, item);
            if (existed) count_row(partition, place, &RowRules::forget_row);
            if (place & kStored) {
                cold_->put(item.id, nullptr, true);
                partition.departures.note(item.id);
            }
            partition.erase(item.id, item.home);
            erased += existed;
        }
    });
    return erased;
}

void RowTable::load(const RowBlockView& block) {
    const Gate::Writer inside(gate_);
    each_resident_group(block.ids, 1, {kDirty, 0}, [&](Partition& partition, Item* items, uint32_t n) {
        for (const Item& item : std::span(items, n)) {
            uint64_t place = partition.find(item.id, item.home);
            if (place == kNowhere)
                place = partition.insert(item.id, item.home);
            else
                count_row(partition, place, &RowRules::forget_row);
            partition.save_before_write(item.id, place);
            copy_in(block, item.position, shape_.at(place));
            count_row(partition, place, &RowRules::count_row);
        }
    });
}

void RowTable::each_group(std::span<const int64_t> ids, uint32_t threads, const GroupWork& work) {
    thread_local Grouping grouping;
    Grouping& mine = grouping;  // the pieces below run on other threads, with other thread_locals
    group(ids, mine);
    const uint32_t pieces = pieces_of(ids.size(), threads);
    run_pieces(pieces, threads, [&](uint32_t piece) {
        run_groups(mine.items.data(), mine.begins.data(), range_begin(mine, piece, pieces),
                   range_begin(mine, piece + 1, pieces), work);
    });
}

// Visits the partitions [first, last), starting at a different one in each call; partitions locked by another thread come last.
void RowTable::run_groups(Item* items, const uint32_t* begins, uint32_t first, uint32_t last,
                          const GroupWork& work) {
    constexpr uint32_t kPrimed = 16;
    const uint32_t span = last - first;
    if (span == 0) return;
    const uint32_t turn = calls_.fetch_add(1, std::memory_order_relaxed) * 89 % span;
    const auto nth = [&](uint32_t i) { return first + (turn + i < span ? turn + i : turn + i - span); };
    const auto prime = [&](uint32_t p) {
        const uint32_t end = std::min(begins[p + 1], begins[p] + kPrimed);
        for (uint32_t j = begins[p]; j < end; ++j) prefetch_bucket(partitions_[p], items[j].home);
    };
    std::array<uint32_t, kPartitions> held_by_others;
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < std::min(span, 2u); ++i) __builtin_prefetch(&partitions_[nth(i)], 1);
    prime(nth(0));
    for (uint32_t i = 0; i < span; ++i) {
        const uint32_t p = nth(i);
        if (i + 2 < span) __builtin_prefetch(&partitions_[nth(i + 2)], 1);
        if (i + 1 < span) prime(nth(i + 1));
        if (begins[p] == begins[p + 1]) continue;
        std::unique_lock held(partitions_[p].lock, std::try_to_lock);
        if (held)
            work(partitions_[p], items + begins[p], begins[p + 1] - begins[p]);
        else
            held_by_others[waiting++] = p;
    }
    for (uint32_t i = 0; i < waiting; ++i) {
        const uint32_t p = held_by_others[i];
        std::lock_guard held(partitions_[p].lock);
        work(partitions_[p], items + begins[p], begins[p + 1] - begins[p]);
    }
}

}  // namespace gearshift
