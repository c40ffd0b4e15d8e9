#include "click_log.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "feature_hash.h"
#include "parallel.h"

namespace gearshift {
namespace {

constexpr int64_t kFirstDay = 1'793'491'200;  // 2026-11-01 00:00 UTC
constexpr int64_t kSecondsPerDay = 86'400;
constexpr size_t kDaysKept = 8;

// The number in float32, as in a file.
GEARSHIFT_VECTOR_KERNEL
void exponentiate(const float* logarithms, int count, float* numbers) {
    for (int i = 0; i < count; ++i) {
        const float z = logarithms[i], number = static_cast<float>(portable::exp(z));
        numbers[i] = z == z ? number : z;
    }
}

GEARSHIFT_VECTOR_KERNEL
void log1p_or_zero(float* numbers, int count) {
    for (int i = 0; i < count; ++i) {
        const float x = numbers[i], transformed = static_cast<float>(portable::log(1.0 + x));
        numbers[i] = x == x ? transformed : 0.0f;
    }
}

void write_numerics(const ClickTile& tile, ClickForm form, float* numeric_BN) {
    float numbers[ClickTile::kSize];
    for (int n = 0; n < kNumerics; ++n) {
        exponentiate(tile.numeric[n], tile.count, numbers);
        if (form == ClickForm::ready) log1p_or_zero(numbers, tile.count);
        for (int i = 0; i < tile.count; ++i) numeric_BN[i * kNumerics + n] = numbers[i];
    }
}

void write_clicks(const ClickTile& tile, float* labels_B, double* truth_B) {
    for (int i = 0; i < tile.count; ++i) {
        truth_B[i] = tile.probability[i];
        labels_B[i] = tile.click[i] < tile.probability[i] ? 1.0f : 0.0f;
    }
}

int64_t cross(const ClickDay& day, const ClickTile& tile, int i) {
    return day.value(kAd, tile.slot[kAd][i]) * kBucketSpecs[kOccupation].size + tile.bucket[kOccupation][i];
}

void write_values(const ClickDay& day, const ClickTile& tile, int64_t* values_BF) {
    for (int i = 0; i < tile.count; ++i) {
        for (int e = 0; e < kEntities; ++e) *values_BF++ = day.value(static_cast<Entity>(e), tile.slot[e][i]);
        for (const auto& bucket : tile.bucket) *values_BF++ = bucket[i];
        *values_BF++ = cross(day, tile, i);
    }
}

}  // namespace

ClickLog::ClickLog(const ClickLogSettings& settings) : settings_(settings), world_(ClickWorld::shared()) {}

int64_t ClickLog::day_of(int64_t position) const {
    return static_cast<int64_t>(static_cast<__int128>(position) * settings_.days / settings_.examples);
}

int64_t ClickLog::day_begin(int64_t day) const {
    return static_cast<int64_t>((static_cast<__int128>(day) * settings_.examples + settings_.days - 1) / settings_.days);
}

std::shared_ptr<const ClickDay> ClickLog::day(int64_t number) const {
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(days_.begin(), days_.end(), [&](const auto& kept) { return kept.first == number; });
    if (found == days_.end()) {
        days_.emplace_front(number, std::make_shared<const ClickDay>(settings_, world_, number));
        if (days_.size() > kDaysKept) days_.pop_back();
    } else {
        days_.splice(days_.begin(), days_, found);
    }
    return days_.front().second;
}

// Each piece writes its histories with room for the longest; then they are moved together.
void ClickLog::fill(int64_t first, int64_t count, ClickForm form, const ClickColumns& out) const {
    constexpr int64_t kWorthAThread = 2048;
    const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    const int64_t pieces = std::clamp<int64_t>(count / kWorthAThread, 1, 4 * cores);
    const auto begin = [&](int64_t piece) { return count * piece / pieces; };
    run_pieces(static_cast<uint32_t>(pieces), cores, [&](uint32_t p) { fill_piece(first, begin(p), begin(p + 1), form, out); });
    if (!settings_.sequences) return;
    out.offsets_B[0] = 0;
    for (int64_t p = 1; p < pieces; ++p) {
        const int64_t to = out.offsets_B[begin(p)];
        const int64_t* from = out.history + begin(p) * kHistory;
        for (int64_t i = begin(p); i < begin(p + 1); ++i) out.offsets_B[i + 1] += to;
        std::copy(from, from + out.offsets_B[begin(p + 1)] - to, out.history + to);
    }
}

// Examples [at, stop) of `out`. Ends of histories are counted from the start of the piece.
void ClickLog::fill_piece(int64_t first, int64_t at, int64_t stop, ClickForm form, const ClickColumns& out) const {
    auto tile = std::make_unique<ClickTile>();
    int64_t* const history = settings_.sequences ? out.history + at * kHistory : nullptr;
    int64_t items = 0;
    while (at < stop) {
        const int64_t number = day_of(first + at), begin = day_begin(number), end = day_begin(number + 1);
        const auto today = day(number);
        for (const int64_t until = std::min(stop, end - first); at < until; at += tile->count) {
            today->draw(first + at - begin, static_cast<int>(std::min<int64_t>(ClickTile::kSize, until - at)), *tile);
            write_clicks(*tile, out.labels_B + at, out.truth_B + at);
            write_numerics(*tile, form, out.numeric_BN + at * kNumerics);
            if (form == ClickForm::raw) write_values(*today, *tile, out.ids_BF + at * kFields);
            if (form == ClickForm::ready) write_ids(*today, *tile, out.ids_BF + at * kFields);
            if (settings_.sequences) items = write_history(*tile, form, items, out.offsets_B + at + 1, history);
            for (int i = 0; i < tile->count; ++i)
                out.times_B[at + i] = kFirstDay + number * kSecondsPerDay + (first + at + i - begin) * kSecondsPerDay / (end - begin);
        }
    }
}

// Column by column, so that many reads of one table are in progress at a time.
void ClickLog::write_ids(const ClickDay& day, const ClickTile& tile, int64_t* ids_BF) const {
    for (int e = 0; e < kEntities; ++e) {
        const int64_t* ids = day.ids(static_cast<Entity>(e)).data();
        for (int i = 0; i < tile.count; ++i) ids_BF[i * kFields + e] = ids[tile.slot[e][i]];
    }
    for (int b = 0; b <= kBuckets; ++b) {
        const int64_t* ids = world_->bucket_ids[b].data();
        for (int i = 0; i < tile.count; ++i) ids_BF[i * kFields + kEntities + b] = ids[tile.bucket[b][i]];
    }
    for (int i = 0; i < tile.count; ++i) ids_BF[i * kFields + kFields - 1] = feature_id(cross(day, tile, i), world_->cross_seed);
}

int64_t ClickLog::write_history(const ClickTile& tile, ClickForm form, int64_t end, int64_t* ends_B, int64_t* history) const {
    const int64_t* ids = world_->bucket_ids[kAdTopic].data();
    for (int i = 0; i < tile.count; ++i) {
        for (uint32_t j = tile.history_length[i]; j-- > 0;) {
            const uint16_t topic = tile.history[j][i];
            history[end++] = form == ClickForm::raw ? topic : ids[topic];
        }
        ends_B[i] = end;
    }
    return end;
}

}  // namespace gearshift
