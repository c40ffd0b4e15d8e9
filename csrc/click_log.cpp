#include "click_log.h"

#include <algorithm>
#include <cmath>

#include "feature_hash.h"

namespace gearshift {
namespace {

constexpr int64_t kFirstDay = 1'793'491'200;  // 2026-11-01 00:00 UTC
constexpr int64_t kSecondsPerDay = 86'400;
constexpr size_t kDaysKept = 8;

float number(float logarithm) { return static_cast<float>(portable::exp(logarithm)); }

float log1p_or_zero(float logarithm) {  // of the number as the file has it, in float32
    return std::isnan(logarithm) ? 0.0f : static_cast<float>(portable::log(1.0 + number(logarithm)));
}

}  // namespace

ClickLog::ClickLog(const ClickLogSettings& settings) : settings_(settings), world_(ClickWorld::shared()) {}

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

void ClickLog::fill(int64_t first, int64_t count, ClickForm form, const ClickColumns& out) const {
    auto tile = std::make_unique<ClickTile>();
    if (settings_.sequences) out.offsets_B[0] = 0;
    for (int64_t at = 0; at < count;) {
        const int64_t number = day_of(first + at), begin = day_begin(number), end = day_begin(number + 1);
        const auto today = day(number);
        for (const int64_t stop = std::min(count, end - first); at < stop; at += tile->count) {
            today->draw(first + at - begin, static_cast<int>(std::min<int64_t>(ClickTile::kSize, stop - at)), *tile);
            write(*today, *tile, form, at, out);
            for (int i = 0; i < tile->count; ++i)
                out.times_B[at + i] = kFirstDay + number * kSecondsPerDay + (first + at + i - begin) * kSecondsPerDay / (end - begin);
        }
    }
}

void ClickLog::write(const ClickDay& day, const ClickTile& tile, ClickForm form, int64_t at, const ClickColumns& out) const {
    const bool raw = form == ClickForm::raw;
    for (int i = 0; i < tile.count; ++i) {
        out.truth_B[at + i] = day.probability(tile, i);
        out.labels_B[at + i] = tile.click_draw[i] < out.truth_B[at + i] ? 1.0f : 0.0f;
        float* numeric_N = out.numeric_BN + (at + i) * kNumerics;
        for (int n = 0; n < kNumerics; ++n) {
            const float x = tile.numeric[n][i];
            numeric_N[n] = !raw ? log1p_or_zero(x) : std::isnan(x) ? NAN : number(x);
        }
        int64_t* id = out.ids_BF + (at + i) * kFields;
        for (int e = 0; e < kEntities; ++e) {
            const auto entity = static_cast<Entity>(e);
            *id++ = raw ? day.value(entity, tile.slot[e][i]) : day.id(entity, tile.slot[e][i]);
        }
        for (int b = 0; b < kBuckets; ++b) {
            const uint32_t bucket = day.bucket(static_cast<Bucket>(b), tile.slot[kBucketSpecs[b].of][i]);
            *id++ = raw ? bucket : world_->bucket_ids[b][bucket];
        }
        *id++ = raw ? tile.hour[i] : world_->bucket_ids[kHour][tile.hour[i]];
        const int64_t cross = day.value(kAd, tile.slot[kAd][i]) * kEntitySpecs[kUser].size + tile.slot[kUser][i];
        *id++ = raw ? cross : feature_id(cross, world_->cross_seed);
        if (!settings_.sequences) continue;
        int64_t& end = out.offsets_B[at + i + 1] = out.offsets_B[at + i];
        for (uint32_t j = tile.history_length[i]; j-- > 0;) {
            const uint32_t slot = tile.history[j][i];
            out.history[end++] = raw ? day.value(kAd, slot) : day.id(kAd, slot);
        }
    }
}

}  // namespace gearshift
