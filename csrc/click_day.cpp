#include "click_day.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "feature_hash.h"

namespace gearshift {
namespace {

using portable::mix;

// The purpose of a hash or a draw. It is part of every key, so no two purposes share bits.
enum Purpose : uint64_t { kMainWeight = 1, kOwnWeight, kPairFactor, kNumericWeight, kLatent, kRebirth, kInterest, kDraw };

enum Column {
    kSlotColumn = 0,  // one per entity
    kHourColumn = kEntities,
    kClickColumn,
    kMissingColumn,                    // 16 bits per number, four numbers per draw
    kNumericColumn = kMissingColumn + 4,
    kTargetColumn = kNumericColumn + kNumerics,
    kTargetAdColumn,
    kLengthColumn,
    kChoiceColumn,                     // one per place in the history
    kItemColumn = kChoiceColumn + kHistory,
    kColumns = kItemColumn + kHistory,
};
static_assert(kColumns <= ClickDay::kMostColumns);

struct Pair {
    Bucket first, second;
};
constexpr Pair kPairs[16] = {
    {kAge, kAdCategory},    {kAge, kAdTopic},         {kGender, kAdTopic},      {kGender, kAdCategory},
    {kOccupation, kAdTopic}, {kOccupation, kQueryIntent}, {kAge, kSiteKind},    {kSiteCategory, kAdFormat},
    {kSiteKind, kAdTopic},  {kQueryIntent, kAdTopic}, {kQueryTopic, kAdFormat}, {kQueryIntent, kSiteKind},
    {kDevice, kAdFormat},   {kSystem, kAdCategory},   {kHour, kSiteKind},       {kHour, kAdTopic},
};

struct NumericSpec {
    Entity of;       // kNoise: describes nothing
    int latent;
    double missing;  // share
};
constexpr NumericSpec kNumericSpecs[kNumerics] = {
    {kUser, 0, 0.0},  {kUser, 1, 0.05}, {kUser, 2, 0.20},  {kAd, 0, 0.0},    {kAd, 1, 0.10},
    {kAd, 2, 0.45},   {kSite, 0, 0.02}, {kSite, 1, 0.30},  {kQuery, 0, 0.0}, {kQuery, 1, 0.25},
    {kNoise, 0, 0.0}, {kNoise, 0, 0.15}, {kNoise, 0, 0.40},
};

constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kTurn = 0.15;      // rad per day, times U(.5, 1.5), times drift
constexpr double kReborn = 0.09;    // share of ads and queries per day, times drift
constexpr double kStrength = 1.4;   // standard deviation of the logit
constexpr double kShares[4] = {0.45, 0.33, 0.12, 0.10};
constexpr double kStrengthBesideHistory = 1.1;
constexpr double kMatch = 2.2, kRecall = 0.85;
constexpr uint32_t kInterests = 4;
constexpr double kTargetOfInterest = 0.35, kItemOfInterest = 0.75, kHistoryEnds = 0.08;
constexpr int64_t kCalibration = int64_t{1} << 40;  // positions of the calibration sample, past the end of any log
constexpr int kCalibrationSize = 1 << 16;

constexpr uint32_t size_of(Bucket bucket) { return bucket == kHour ? kHours : kBucketSpecs[bucket].size; }

uint64_t bits(uint64_t stream, int64_t position) { return mix(stream + static_cast<uint64_t>(position) * portable::kGolden); }

GEARSHIFT_VECTOR_KERNEL
void draw_normals(uint64_t stream, int64_t position, int count, double* normals) {
    double p[ClickTile::kSize];
    for (int i = 0; i < count; ++i) {
        p[i] = portable::uniform(bits(stream, position + i));
        normals[i] = portable::normal_inside(p[i]);
    }
    for (int i = 0; i < count; ++i)  // one in twenty
        if (!portable::is_inside(p[i])) normals[i] = portable::normal_outside(p[i]);
}

GEARSHIFT_VECTOR_KERNEL
void sigmoids(const double* logits, double bias, int count, double* probabilities) {
    for (int i = 0; i < count; ++i) probabilities[i] = portable::sigmoid(logits[i] + bias);
}

}  // namespace

ClickDay::ClickDay(const ClickLogSettings& settings, std::shared_ptr<const ClickWorld> world, int64_t day)
    : seed_(settings.seed), day_(day), sequences_(settings.sequences), drift_(settings.drift),
      interests_(mix(settings.seed, kInterest)), world_(std::move(world)) {
    for (int e = 0; e < kNoise; ++e) records_[e] = records(static_cast<Entity>(e));
    for (Entity e : {kAd, kQuery}) {
        if (day == 0 || drift_ == 0.0) continue;
        reborn_ids_[e] = world_->ids[e];
        for (uint32_t slot = 0; slot < reborn_ids_[e].size(); ++slot)
            if (records_[e][slot].generation) reborn_ids_[e][slot] = feature_id(value(e, slot), world_->table_seeds[e]);
    }
    for (int column = 0; column < kColumns; ++column) stream_[column] = mix(mix(mix(seed_, kDraw), day_), column);
    make_pairs();
    make_numeric_weights();
    calibrate(settings.click_rate);
}

// A standard normal number for the key, which changes slowly over the days.
double ClickDay::weight(uint64_t key, double rate) const {
    const double now = portable::normal(mix(key, 1));
    if (day_ == 0 || drift_ == 0.0) return now;
    const double turns = drift_ * rate * day_ * (0.5 + portable::uniform(mix(key, 2))) / (2.0 * portable::kPi);
    return now * portable::cos_turns(turns) + portable::normal(mix(key, 3)) * portable::sin_turns(turns);
}

uint16_t ClickDay::generation(Entity entity, uint32_t slot) const {
    uint16_t generation = 0;
    const uint64_t key = mix(mix(mix(seed_, kRebirth), entity), slot);
    for (int64_t day = 1; day <= day_; ++day) generation += portable::uniform(mix(key, day)) < kReborn * drift_;
    return generation;
}

std::vector<ClickDay::Record> ClickDay::records(Entity entity) const {
    std::vector<Bucket> buckets;
    std::vector<std::vector<float>> main;  // [bucket of the entity][its value]
    for (int b = 0; b < kBuckets; ++b) {
        if (kBucketSpecs[b].of != entity) continue;
        buckets.push_back(static_cast<Bucket>(b));
        main.emplace_back(kBucketSpecs[b].size, 0.0f);
        const uint64_t key = mix(mix(seed_, kMainWeight), b);
        for (uint32_t i = 0; kBucketSpecs[b].main && i < kBucketSpecs[b].size; ++i)
            main.back()[i] = static_cast<float>(weight(mix(key, i), kTurn / 2));
    }
    const EntitySpec& spec = kEntitySpecs[entity];
    const uint64_t own_key = mix(mix(seed_, kOwnWeight), entity), latent_key = mix(mix(seed_, kLatent), entity);
    std::vector<Record> records(spec.size);
    for (uint32_t slot = 0; slot < spec.size; ++slot) {
        Record& record = records[slot];
        record.generation = spec.reborn ? generation(entity, slot) : 0;
        const uint64_t value = slot + uint64_t{record.generation} * spec.size;
        for (size_t place = 0; place < buckets.size(); ++place) {
            record.bucket[place] = static_cast<uint16_t>(bucket_of(buckets[place], slot, value));
            record.main += main[place][record.bucket[place]];
        }
        record.own = entity == kContext ? 0.0f : static_cast<float>(weight(mix(own_key, value), kTurn));
        for (uint64_t k = 0; k < 3; ++k) record.latent[k] = static_cast<float>(portable::normal(mix(mix(latent_key, value), k)));
    }
    return records;
}

// A field has one vector per value, shared by all its pairs, as in a factorization machine.
void ClickDay::make_pairs() {
    const auto factors = [&](Bucket bucket) {
        std::vector<float> factors(size_of(bucket) * 3);
        const uint64_t key = mix(mix(seed_, kPairFactor), bucket);
        for (size_t i = 0; i < factors.size(); ++i) factors[i] = static_cast<float>(weight(mix(key, i), kTurn));
        return factors;
    };
    for (int p = 0; p < 16; ++p) {
        const std::vector<float> row = factors(kPairs[p].first), column = factors(kPairs[p].second);
        for (size_t r = 0; r < row.size(); r += 3)
            for (size_t c = 0; c < column.size(); c += 3)
                pair_[p].push_back(row[r] * column[c] + row[r + 1] * column[c + 1] + row[r + 2] * column[c + 2]);
    }
}

void ClickDay::make_numeric_weights() {
    const uint64_t key = mix(seed_, kNumericWeight);
    for (uint32_t age = 0; age < age_.size(); ++age) age_[age] = static_cast<float>(weight(mix(key, age), kTurn));
    phase_ = portable::uniform(mix(key, 100)) + drift_ * kTurn * day_ / (2.0 * portable::kPi);
    for (uint32_t hour = 0; hour < kHours; ++hour)
        hour_[hour] = static_cast<float>(kSqrt2 * portable::sin_turns(hour / 24.0 + phase_));
}

int64_t ClickDay::value(Entity entity, uint32_t slot) const {
    const int64_t generation = entity == kNoise ? 0 : records_[entity][slot].generation;
    return slot + generation * kEntitySpecs[entity].size;
}

const std::vector<int64_t>& ClickDay::ids(Entity entity) const {
    return reborn_ids_[entity].empty() ? world_->ids[entity] : reborn_ids_[entity];
}

void ClickDay::draw(int64_t position, int count, ClickTile& tile) const {
    tile.count = count;
    draw_entities(position, tile);
    if (sequences_) draw_histories(position, tile);
    look_up_entities(tile);
    draw_numerics(position, tile);
    sum_pairs(tile);
    double logit[ClickTile::kSize];
    for (int i = 0; i < count; ++i) {
        tile.part[2][i] = static_cast<float>(numeric_part(tile, i));
        logit[i] = sequences_ ? tile.match[i] : 0.0;
        for (int k = 0; k < 4; ++k) logit[i] += scale_[k] * tile.part[k][i];
    }
    sigmoids(logit, bias_, count, tile.probability);
}

void ClickDay::draw_entities(int64_t position, ClickTile& tile) const {
    for (int e = 0; e < kEntities; ++e) {
        const AliasTable& popularity = world_->popularity[e];
        const uint64_t stream = stream_[kSlotColumn + e];
        for (int i = 0; i < tile.count; ++i) tile.slot[e][i] = popularity.draw(bits(stream, position + i));
    }
    for (int i = 0; i < tile.count; ++i) {
        tile.bucket[kHour][i] = static_cast<uint16_t>(portable::below(kHours, bits(stream_[kHourColumn], position + i)));
        tile.click[i] = portable::uniform(bits(stream_[kClickColumn], position + i));
    }
}

// The topic of one of the user's interests.
uint32_t ClickDay::interest(uint32_t user, uint64_t choice) const {
    return portable::below(size_of(kAdTopic), mix(interests_ + (uint64_t{user} * kInterests + choice % kInterests) * portable::kGolden));
}

void ClickDay::draw_histories(int64_t position, ClickTile& tile) const {
    static const double log_goes_on = portable::log(1.0 - kHistoryEnds);
    for (int i = 0; i < tile.count; ++i) {
        const auto drawn = [&](int column) { return bits(stream_[column], position + i); };
        const uint32_t user = tile.slot[kUser][i];
        if (const uint64_t target = drawn(kTargetColumn); portable::uniform(target) < kTargetOfInterest) {
            const TopicAds& ads = world_->topics[interest(user, target)];
            tile.slot[kAd][i] = ads.slots[ads.popularity.draw(drawn(kTargetAdColumn))];
        }
        const uint32_t topic = records_[kAd][tile.slot[kAd][i]].bucket[kBucketPlace[kAdTopic]];
        const double length = std::floor(portable::log(portable::uniform(drawn(kLengthColumn))) / log_goes_on);
        tile.history_length[i] = length < kHistory ? static_cast<uint32_t>(length) : kHistory;
        double matches = 0.0, recall = 1.0;
        for (uint32_t j = 0; j < tile.history_length[i]; ++j, recall *= kRecall) {
            const uint64_t choice = drawn(kChoiceColumn + j), item = drawn(kItemColumn + j);
            const bool of_interest = portable::uniform(choice) < kItemOfInterest;
            const uint32_t seen = of_interest ? interest(user, choice) : world_->ad_categories.draw(item) / kCategoriesPerTopic;
            tile.history[j][i] = static_cast<uint16_t>(seen);
            if (seen == topic) matches += recall;
        }
        tile.match[i] = static_cast<float>(kMatch * (1.0 - portable::exp(-matches)));
    }
}

// The only random access to records: once per entity and example.
void ClickDay::look_up_entities(ClickTile& tile) const {
    std::fill_n(tile.part[0], tile.count, 0.0f);
    std::fill_n(tile.part[3], tile.count, 0.0f);
    for (int e = 0, bucket = 0, number = 0; e < kNoise; ++e) {
        const int buckets = bucket, numbers = number;
        while (bucket < kBuckets && kBucketSpecs[bucket].of == e) ++bucket;
        while (number < kNumerics && kNumericSpecs[number].of == e) ++number;
        for (int i = 0; i < tile.count; ++i) {
            const Record& record = records_[e][tile.slot[e][i]];
            tile.part[0][i] += record.main;
            tile.part[3][i] += record.own;
            for (int b = buckets; b < bucket; ++b) tile.bucket[b][i] = record.bucket[b - buckets];
            for (int n = numbers; n < number; ++n) tile.numeric[n][i] = record.latent[n - numbers];
        }
    }
}

void ClickDay::draw_numerics(int64_t position, ClickTile& tile) const {
    double noise[ClickTile::kSize];
    for (int n = 0; n < kNumerics; ++n) {
        draw_normals(stream_[kNumericColumn + n], position, tile.count, noise);
        const NumericSpec spec = kNumericSpecs[n];
        const uint64_t stream = stream_[kMissingColumn + n / 4], missing = static_cast<uint64_t>(spec.missing * 65536);
        for (int i = 0; i < tile.count; ++i) {
            const double z = spec.of == kNoise ? noise[i] : 0.8 * tile.numeric[n][i] + 0.6 * noise[i];
            tile.numeric[n][i] = static_cast<float>(z);
        }
        for (int i = 0; missing && i < tile.count; ++i)
            if ((bits(stream, position + i) >> (16 * (n % 4)) & 0xFFFF) < missing) tile.numeric[n][i] = NAN;
    }
}

// A missing value is not informative: the teacher sees only what is in the file.
double ClickDay::numeric_part(const ClickTile& tile, int i) const {
    const float wave = tile.numeric[0][i], threshold = tile.numeric[3][i], sign = tile.numeric[6][i], amount = tile.numeric[1][i];
    double sum = hour_[tile.bucket[kHour][i]];
    if (!std::isnan(wave)) sum += kSqrt2 * portable::sin_turns(0.4 * wave + phase_);
    if (!std::isnan(threshold) && !std::isnan(sign)) sum += (threshold > 0.3f) == (sign > 0.0f) ? 1.0 : -1.0;
    if (!std::isnan(amount)) sum += amount * age_[tile.bucket[kAge][i]];
    return sum;
}

void ClickDay::sum_pairs(ClickTile& tile) const {
    std::fill_n(tile.part[1], tile.count, 0.0f);
    for (int p = 0; p < 16; ++p) {
        const uint16_t *row = tile.bucket[kPairs[p].first], *column = tile.bucket[kPairs[p].second];
        const uint32_t columns = size_of(kPairs[p].second);
        for (int i = 0; i < tile.count; ++i) tile.part[1][i] += pair_[p][row[i] * columns + column[i]];
    }
}

void ClickDay::calibrate(double click_rate) {
    auto tile = std::make_unique<ClickTile>();
    std::array<std::vector<float>, 5> sample;  // the four parts, and the contribution of the history
    for (int64_t at = 0; at < kCalibrationSize; at += ClickTile::kSize) {
        draw(kCalibration + at, ClickTile::kSize, *tile);
        for (int k = 0; k < 4; ++k) sample[k].insert(sample[k].end(), tile->part[k], tile->part[k] + ClickTile::kSize);
        if (sequences_) sample[4].insert(sample[4].end(), tile->match, tile->match + ClickTile::kSize);
    }
    std::vector<double> logits(sample[4].begin(), sample[4].end());
    logits.resize(kCalibrationSize);
    const double strength = sequences_ ? kStrengthBesideHistory : kStrength;
    for (int k = 0; k < 4; ++k) {
        double sum = 0.0, squares = 0.0;
        for (float x : sample[k]) sum += x;
        const double mean = sum / kCalibrationSize;
        for (float x : sample[k]) squares += (x - mean) * (x - mean);
        scale_[k] = strength * std::sqrt(kShares[k] / (squares / kCalibrationSize));
        for (int i = 0; i < kCalibrationSize; ++i) logits[i] += scale_[k] * sample[k][i];
    }
    std::vector<double> probabilities(kCalibrationSize);
    double low = -60.0, high = 60.0;
    for (int step = 0; step < 32; ++step) {
        bias_ = (low + high) / 2;
        sigmoids(logits.data(), bias_, kCalibrationSize, probabilities.data());
        const double rate = std::accumulate(probabilities.begin(), probabilities.end(), 0.0) / kCalibrationSize;
        (rate < click_rate ? low : high) = bias_;
    }
}

}  // namespace gearshift
