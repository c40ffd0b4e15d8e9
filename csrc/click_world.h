// The constants of every synthetic click log, for any seed and day: the entities, the fields derived from them, their
// frequencies, and the ids of their values.
//
// An entity (a user, an ad) is a *slot*; slot k is drawn with probability ~ 1 / (k + 1)^exponent. Its *value* is the
// number in a file: the slot or, for an ad or query that was replaced g times, slot + g * size. A field's text is that
// number in decimal, and its id is the one that a CSV reader computes from that text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "portable_math.h"

namespace gearshift {

enum Entity { kUser, kAd, kSite, kQuery, kContext, kNoise, kEntities };

struct EntitySpec {
    const char* name;
    uint32_t size;
    double exponent;
    bool reborn;  // some of them are replaced every day
};

inline constexpr std::array<EntitySpec, kEntities> kEntitySpecs{{
    {"user", 400'000, 0.75, false},
    {"ad", 200'000, 1.05, true},
    {"site", 50'000, 1.15, false},
    {"query", 300'000, 1.05, true},
    {"context", 5'000, 1.0, false},
    {"noise", 1'000'000, 0.9, false},
}};

// A coarser view of an entity: a hash of its value into buckets. `main`: the teacher has a weight per bucket.
struct BucketSpec {
    const char* name;
    Entity of;
    uint32_t size;
    bool main;
};

enum Bucket {
    kTown, kRegion, kOccupation, kAge, kGender, kCampaign, kAdvertiser, kAdCategory, kAdTopic, kAdFormat,
    kPublisher, kSiteCategory, kSiteKind, kQueryStem, kQueryTopic, kQueryIntent, kDevice, kSystem, kBuckets,
    kHour = kBuckets,  // drawn independently, not a view of an entity
};

inline constexpr uint32_t kHours = 24;

inline constexpr std::array<BucketSpec, kBuckets> kBucketSpecs{{
    {"town", kUser, 20'000, false},
    {"region", kUser, 1'000, true},
    {"occupation", kUser, 200, true},
    {"age", kUser, 20, false},
    {"gender", kUser, 3, false},
    {"campaign", kAd, 10'000, false},
    {"advertiser", kAd, 2'000, true},
    {"ad_category", kAd, 400, true},  // of the slot: a replaced ad keeps its category
    {"ad_topic", kAd, 100, false},    // four categories make a topic
    {"ad_format", kAd, 8, false},
    {"publisher", kSite, 2'000, true},
    {"site_category", kSite, 200, true},
    {"site_kind", kSite, 12, false},
    {"query_stem", kQuery, 20'000, false},
    {"query_topic", kQuery, 400, true},
    {"query_intent", kQuery, 30, false},
    {"device", kContext, 300, true},
    {"system", kContext, 5, false},
}};

// The index of a bucket among those of its entity.
inline constexpr std::array<int, kBuckets> kBucketPlace = [] {
    std::array<int, kBuckets> place{};
    for (int b = 1; b < kBuckets; ++b) place[b] = kBucketSpecs[b].of == kBucketSpecs[b - 1].of ? place[b - 1] + 1 : 0;
    return place;
}();

inline constexpr uint32_t kCategoriesPerTopic = 4;
inline constexpr int kFields = int{kEntities} + int{kBuckets} + 2;  // and the hour, and a cross of occupation and ad
inline constexpr int kNumerics = 13;
inline constexpr int kHistory = 20;  // longest history

const char* click_field_name(int field);

inline uint32_t bucket_of(Bucket bucket, uint32_t slot, uint64_t value) {
    if (bucket == kAdTopic) return bucket_of(kAdCategory, slot, value) / kCategoriesPerTopic;
    if (bucket == kAdCategory) value = slot;
    return portable::below(kBucketSpecs[bucket].size, portable::mix(0xB0C4E7 + bucket, value));
}

// Draws an index with given probabilities from 64 random bits, in constant time (Walker's alias method, built by Vose's
// algorithm in a fixed order).
class AliasTable {
public:
    AliasTable() = default;
    explicit AliasTable(const std::vector<double>& weights);

    uint32_t draw(uint64_t bits) const {
        const uint32_t index = portable::below(static_cast<uint32_t>(cells_.size()), bits);
        const Cell cell = cells_[index];
        return static_cast<uint32_t>(bits) < cell.keep ? index : cell.other;
    }

private:
    struct Cell {
        uint32_t keep;  // of 2^32
        uint32_t other;
    };
    std::vector<Cell> cells_;
};

// The ads of one topic, drawn by their popularity.
struct TopicAds {
    std::vector<uint32_t> slots;
    AliasTable popularity;
};

struct ClickWorld {
    std::array<AliasTable, kEntities> popularity;
    std::array<std::vector<int64_t>, kEntities> ids;  // of the first generation, by slot
    std::array<std::vector<int64_t>, kBuckets + 1> bucket_ids;
    std::array<TopicAds, kBucketSpecs[kAdTopic].size> topics;
    AliasTable ad_categories;
    std::array<uint64_t, kEntities> table_seeds;
    uint64_t cross_seed;

    ClickWorld();
    static std::shared_ptr<const ClickWorld> shared();  // built once and shared while in use (about 50 MB)
};

}  // namespace gearshift
