// One day of a synthetic click log: the existing users and ads, the teacher's logit, and the examples drawn.
//
// The teacher's logit of an example is a sum of parts: main (weights of mid-sized fields), pair (16 pairs of small fields,
// products of rank 3), numeric (a sine, a threshold, a number times a category, the hour), own (a weight per id) and, if
// there are histories, the match of the history with the ad. Each part except the last is scaled to unit variance, and a
// bias brings the mean probability to the click rate, both on a fixed sample of the day. Weights change slightly each day.
//
// A drawn value depends only on (seed, day, position), never on which examples are requested together.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "click_world.h"

namespace gearshift {

struct ClickLogSettings {
    uint64_t seed = 1;
    int64_t examples = 1'000'000;
    int64_t days = 1;
    bool sequences = false;
    double drift = 1.0;  // 1: weights turn by about .15 rad per day and 9 % of ads and queries are replaced
    double click_rate = 0.2;
};

// Examples at consecutive positions of a day, column by column, small enough for the L1 cache.
struct ClickTile {
    static constexpr int kSize = 128;
    int count = 0;
    uint32_t slot[kEntities][kSize];
    uint16_t bucket[kBuckets + 1][kSize];  // and the hour
    float numeric[kNumerics][kSize];       // the logarithm; NaN if missing
    float part[4][kSize];                  // main, pair, numeric, own; before scaling
    float match[kSize];                    // the contribution of the history
    uint32_t history_length[kSize];
    uint16_t history[kHistory][kSize];     // topics of ads, latest first
    double probability[kSize];             // the teacher's
    double click[kSize];                   // uniform; a click if below the probability
};

class ClickDay {
public:
    static constexpr int kMostColumns = 80;

    ClickDay(const ClickLogSettings& settings, std::shared_ptr<const ClickWorld> world, int64_t day);

    void draw(int64_t position, int count, ClickTile& tile) const;
    int64_t value(Entity entity, uint32_t slot) const;
    const std::vector<int64_t>& ids(Entity entity) const;  // by slot

private:
    // Everything that a lookup of one entity needs, in half a cache line.
    struct Record {
        float main, own;
        float latent[3];  // of the numbers that describe it
        uint16_t generation;
        uint16_t bucket[5];
    };

    double weight(uint64_t key, double rate) const;
    std::vector<Record> records(Entity entity) const;
    uint16_t generation(Entity entity, uint32_t slot) const;
    void make_pairs();
    void make_numeric_weights();
    void calibrate(double click_rate);

    void draw_entities(int64_t position, ClickTile& tile) const;
    void draw_histories(int64_t position, ClickTile& tile) const;
    uint32_t interest(uint32_t user, uint64_t choice) const;
    void look_up_entities(ClickTile& tile) const;
    void draw_numerics(int64_t position, ClickTile& tile) const;
    void sum_pairs(ClickTile& tile) const;
    double numeric_part(const ClickTile& tile, int i) const;

    const uint64_t seed_;
    const int64_t day_;
    const bool sequences_;
    const double drift_;
    const uint64_t interests_;  // key of the users' interests
    const std::shared_ptr<const ClickWorld> world_;
    std::array<uint64_t, kMostColumns> stream_;               // where a column's random bits start
    std::array<std::vector<Record>, kEntities> records_;       // none for noise
    std::array<std::vector<int64_t>, kEntities> reborn_ids_;  // where the day differs from the world
    std::array<std::vector<float>, 16> pair_;                 // [first bucket, second bucket]
    std::array<float, kHours> hour_;
    std::array<float, 20> age_;
    double phase_ = 0.0;
    std::array<double, 4> scale_{};
    double bias_ = 0.0;
};

}  // namespace gearshift
