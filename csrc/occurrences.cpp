#include "occurrences.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "parallel.h"

namespace gearshift {
namespace {

// Buffers of earlier batches. Few are kept; usually one per worker thread is needed.
class BufferShelf {
public:
    std::unique_ptr<OccurrenceBuffers> take() {
        std::lock_guard held(lock_);
        if (shelf_.empty()) return std::make_unique<OccurrenceBuffers>();
        auto buffers = std::move(shelf_.back());
        shelf_.pop_back();
        return buffers;
    }
    void give(std::unique_ptr<OccurrenceBuffers> buffers) {
        std::lock_guard held(lock_);
        if (shelf_.size() < 8) shelf_.push_back(std::move(buffers));
    }

private:
    std::mutex lock_;
    std::vector<std::unique_ptr<OccurrenceBuffers>> shelf_;
};

BufferShelf& shelf() {
    static BufferShelf* const one = new BufferShelf;  // never destroyed: batches may outlive main()
    return *one;
}

template <class T>
void at_least(std::vector<T>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer.resize(size + size / 4);
}

// Splits n pieces of work into a few ranges per thread; calls run(first, last) for each.
template <class Run>
void run_ranges(std::size_t n, uint32_t threads, Run run) {
    constexpr std::size_t kWorthAPiece = 8192;
    const std::size_t most = threads > 1 ? 4 * threads : 1;
    const auto pieces = static_cast<uint32_t>(std::clamp<std::size_t>(n / kWorthAPiece, 1, most));
    run_pieces(pieces, threads, [&](uint32_t p) { run(n * p / pieces, n * (p + 1) / pieces); });
}

// Calls run(std::integral_constant<uint32_t, P>) for the usual widths, so that their loops are unrolled; 0 = any width.
template <class Run>
void with_columns(uint32_t columns, Run run) {
    switch (columns) {
        case 1: return run(std::integral_constant<uint32_t, 1>{});
        case 8: return run(std::integral_constant<uint32_t, 8>{});
        case 16: return run(std::integral_constant<uint32_t, 16>{});
        case 32: return run(std::integral_constant<uint32_t, 32>{});
        default: return run(std::integral_constant<uint32_t, 0>{});
    }
}

// The sum of the rows order[first, last) of grads, in this order. A fixed width is summed in registers. Returns whether all
// sums can be squared: x * x * 0 is 0 if so, and NaN if x is infinite, NaN or too large.
template <uint32_t Fixed>
bool sum_rows(const float* grads, const uint32_t* order, std::size_t first, std::size_t last, std::size_t all,
              uint32_t columns, float* out) {
    constexpr std::size_t kAhead = 16;
    float registers[Fixed ? Fixed : 1];
    float* total = Fixed ? registers : out;
    for (std::size_t k = first; k < last; ++k) {
        if (k + kAhead < all) {
            const float* later = grads + std::size_t{order[k + kAhead]} * columns;
            __builtin_prefetch(later);
            __builtin_prefetch(later + columns - 1);
        }
        const float* grad = grads + std::size_t{order[k]} * columns;
        if (k == first)
            std::memcpy(total, grad, columns * sizeof(float));
        else
            for (uint32_t c = 0; c < columns; ++c) total[c] += grad[c];
    }
    bool finite = true;
    for (uint32_t c = 0; c < columns; ++c) finite &= total[c] * total[c] * 0.0f == 0.0f;
    if (Fixed) std::memcpy(out, total, columns * sizeof(float));
    return finite;
}

}  // namespace

Occurrences::Occurrences(std::span<const int64_t> ids) : buffers_(shelf().take()), occurrences_(ids.size()) {
    if (ids.size() > 0x7fffffff) throw std::invalid_argument("at most 2^31 occurrences fit in one batch");
    find_unique(ids);
    group_occurrences();
}

Occurrences::~Occurrences() { shelf().give(std::move(buffers_)); }

void Occurrences::find_unique(std::span<const int64_t> ids) {
    OccurrenceBuffers& b = *buffers_;
    const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, ids.size() * 2));
    const int shift = 64 - std::countr_zero(slots);
    at_least(b.unique, ids.size());
    at_least(b.counts, ids.size());
    at_least(b.first, ids.size());
    at_least(b.inverse, ids.size());
    if (b.table.size() < slots) b.table.resize(slots);
    std::memset(b.table.data(), 0, slots * sizeof(uint32_t));
    // The table is small and ids repeat, so one multiplication spreads them well enough (Fibonacci hashing).
    const auto home = [shift](int64_t id) {
        return (static_cast<uint64_t>(id) ^ static_cast<uint64_t>(id) >> 32) * 0x9e3779b97f4a7c15ULL >> shift;
    };
    constexpr std::size_t kAhead = 16;
    uint32_t* const table = b.table.data();
    int64_t* const unique = b.unique.data();
    uint32_t found = 0;
    for (std::size_t n = 0; n < ids.size(); ++n) {
        if (n + kAhead < ids.size()) __builtin_prefetch(table + home(ids[n + kAhead]), 1);
        const int64_t id = ids[n];
        std::size_t slot = home(id);
        while (table[slot] != 0 && unique[table[slot] - 1] != id) slot = (slot + 1) & (slots - 1);
        if (table[slot] == 0) {
            unique[found] = id;
            b.counts[found] = 0;
            b.first[found] = static_cast<uint32_t>(n);
            table[slot] = ++found;
        }
        const uint32_t u = table[slot] - 1;
        ++b.counts[u];
        b.inverse[n] = u;
    }
    unique_ = found;
}

void Occurrences::group_occurrences() {
    OccurrenceBuffers& b = *buffers_;
    at_least(b.begins, unique_ + 1);
    at_least(b.order, occurrences_);
    uint32_t begin = 0;
    for (std::size_t u = 0; u < unique_; ++u) {
        b.begins[u] = begin;
        begin += b.counts[u];
    }
    b.begins[unique_] = begin;
    for (uint32_t n = 0; n < occurrences_; ++n) b.order[b.begins[b.inverse[n]]++] = n;
    for (std::size_t u = unique_; u > 0; --u) b.begins[u] = b.begins[u - 1];  // each had been moved to its end
    b.begins[0] = 0;
}

void Occurrences::expand(const float* rows_UW, uint32_t width, uint32_t begin, uint32_t columns, float* out_NP,
                         uint32_t threads) const {
    const uint32_t* inverse = buffers_->inverse.data();
    with_columns(columns, [&](auto fixed) {
        run_ranges(occurrences_, threads, [=](std::size_t first, std::size_t last) {
            const uint32_t count = fixed.value ? fixed.value : columns;
            for (std::size_t n = first; n < last; ++n)
                std::memcpy(out_NP + n * count, rows_UW + std::size_t{inverse[n]} * width + begin, count * sizeof(float));
        });
    });
}

bool Occurrences::sum(const float* grads_NP, uint32_t width, uint32_t begin, uint32_t columns, float* out_UW,
                      uint32_t threads) const {
    const uint32_t* begins = buffers_->begins.data();
    const uint32_t* order = buffers_->order.data();
    const std::size_t occurrences = occurrences_;
    const auto sum_range = [=](auto fixed, std::size_t first, std::size_t last) {
        const uint32_t count = fixed.value ? fixed.value : columns;
        bool finite = true;
        for (std::size_t u = first; u < last; ++u) {
            const std::size_t end = begins[u + 1];
            finite &= sum_rows<fixed.value>(grads_NP, order, begins[u], end, occurrences, count, out_UW + u * width + begin);
        }
        return finite;
    };
    std::atomic<bool> finite = true;
    // Ranges of ids with about equally many occurrences.
    const auto id_at = [=, this](std::size_t occurrence) {
        return static_cast<std::size_t>(std::lower_bound(begins, begins + unique_, occurrence) - begins);
    };
    with_columns(columns, [&](auto fixed) {
        run_ranges(occurrences, threads, [&](std::size_t first, std::size_t last) {
            if (!sum_range(fixed, id_at(first), id_at(last))) finite = false;
        });
    });
    return finite;
}

}  // namespace gearshift
