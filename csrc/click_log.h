// A synthetic click log of any size: examples by position, as training input or as the values of a file.
//
// Any range of examples can be generated independently, in any order and from several threads, with the same bits.
// Positions are spread evenly over the days, in time order. Days are built on first use (about 0.2 s each), and the few
// most recently used are kept.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "click_day.h"

namespace gearshift {

// The output of `fill`: contiguous rows of `count` examples.
struct ClickColumns {
    float* labels_B;
    double* truth_B;  // the teacher's probability
    float* numeric_BN;
    int64_t* ids_BF;
    int64_t* times_B;    // epoch seconds
    int64_t* offsets_B;  // [count + 1], where the log has histories
    int64_t* history;    // up to count * kHistory, oldest first; those of example i end at offsets[i + 1]
};

// `ready`: ids, and log1p of the numbers with 0 for missing, like the output of the schema's transforms.
// `raw`: values as in a file, and the numbers with NaN for missing.
enum class ClickForm { ready, raw };

class ClickLog {
public:
    explicit ClickLog(const ClickLogSettings& settings);

    void fill(int64_t first, int64_t count, ClickForm form, const ClickColumns& out) const;  // on all cores

private:
    void fill_piece(int64_t first, int64_t at, int64_t stop, ClickForm form, const ClickColumns& out) const;
    int64_t day_of(int64_t position) const;
    int64_t day_begin(int64_t day) const;
    std::shared_ptr<const ClickDay> day(int64_t number) const;
    void write_ids(const ClickDay& day, const ClickTile& tile, int64_t* ids_BF) const;
    int64_t write_history(const ClickTile& tile, ClickForm form, int64_t end, int64_t* ends_B, int64_t* history) const;

    const ClickLogSettings settings_;
    const std::shared_ptr<const ClickWorld> world_;
    mutable std::mutex mutex_;
    mutable std::list<std::pair<int64_t, std::shared_ptr<const ClickDay>>> days_;  // most recently used first
};

}  // namespace gearshift
