#include "click_world.h"

#include <mutex>

#include "feature_hash.h"

namespace gearshift {
namespace {

double zipf_weight(uint32_t slot, double exponent) { return portable::exp(-exponent * portable::log(slot + 1.0)); }

std::vector<double> zipf_weights(const EntitySpec& spec) {
    std::vector<double> weights(spec.size);
    for (uint32_t slot = 0; slot < spec.size; ++slot) weights[slot] = zipf_weight(slot, spec.exponent);
    return weights;
}

std::vector<int64_t> ids_of(uint64_t seed, uint32_t size) {
    std::vector<int64_t> ids(size);
    for (uint32_t value = 0; value < size; ++value) ids[value] = feature_id(int64_t{value}, seed);
    return ids;
}

}  // namespace

const char* click_field_name(int field) {
    if (field < kEntities) return kEntitySpecs[field].name;
    if (field < kFields - 2) return kBucketSpecs[field - kEntities].name;
    return field == kFields - 2 ? "hour" : "occupation_ad";
}

AliasTable::AliasTable(const std::vector<double>& weights) : cells_(weights.size()) {
    double total = 0.0;
    for (double weight : weights) total += weight;
    const double scale = static_cast<double>(weights.size()) / total;
    std::vector<double> share(weights.size());
    std::vector<uint32_t> poor, rich;
    for (uint32_t i = 0; i < weights.size(); ++i) {
        share[i] = weights[i] * scale;
        (share[i] < 1.0 ? poor : rich).push_back(i);
        cells_[i] = {UINT32_MAX, i};
    }
    while (!poor.empty() && !rich.empty()) {
        const uint32_t small = poor.back(), large = rich.back();
        poor.pop_back();
        cells_[small] = {static_cast<uint32_t>(share[small] * 0x1p32), large};
        share[large] -= 1.0 - share[small];
        if (share[large] >= 1.0) continue;
        rich.pop_back();
        poor.push_back(large);
    }
}

ClickWorld::ClickWorld() : cross_seed(table_seed(click_field_name(kFields - 1))) {
    for (int e = 0; e < kEntities; ++e) {
        table_seeds[e] = table_seed(kEntitySpecs[e].name);
        popularity[e] = AliasTable(zipf_weights(kEntitySpecs[e]));
        ids[e] = ids_of(table_seeds[e], kEntitySpecs[e].size);
    }
    for (int b = 0; b < kBuckets; ++b) bucket_ids[b] = ids_of(table_seed(kBucketSpecs[b].name), kBucketSpecs[b].size);
    bucket_ids[kHour] = ids_of(table_seed("hour"), kHours);

    std::vector<double> of_category(kBucketSpecs[kAdCategory].size);
    std::array<std::vector<double>, kBucketSpecs[kAdTopic].size> of_topic;
    for (uint32_t slot = 0; slot < kEntitySpecs[kAd].size; ++slot) {
        const double weight = zipf_weight(slot, kEntitySpecs[kAd].exponent);
        const uint32_t category = bucket_of(kAdCategory, slot, slot), topic = category / kCategoriesPerTopic;
        topics[topic].slots.push_back(slot);
        of_topic[topic].push_back(weight);
        of_category[category] += weight;
    }
    ad_categories = AliasTable(of_category);
    for (uint32_t topic = 0; topic < topics.size(); ++topic) topics[topic].popularity = AliasTable(of_topic[topic]);
}

std::shared_ptr<const ClickWorld> ClickWorld::shared() {
    static std::mutex mutex;
    static std::weak_ptr<const ClickWorld> current;
    const std::lock_guard lock(mutex);
    auto world = current.lock();
    if (!world) current = world = std::make_shared<const ClickWorld>();
    return world;
}

}  // namespace gearshift
