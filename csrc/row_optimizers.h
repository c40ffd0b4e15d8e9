// One row's step, per optimizer: formulas over `width` floats, eight columns at a time and then one by one.
//
// Only +, -, *, / and sqrt, each rounded by IEEE, in the order written: the same bits with and without AVX2. The gradient
// is already the mean; l2 * weight is added to it for touched rows (FTRL has l2 in its closed form). Included only by
// row_kernels.h, inside the namespace of one instruction set.
#pragma once

namespace gearshift {
namespace GEARSHIFT_KERNELS {

typedef float Eight __attribute__((vector_size(32)));

#define GEARSHIFT_INLINE inline __attribute__((always_inline))

GEARSHIFT_INLINE float root(float x) { return __builtin_sqrtf(x); }
GEARSHIFT_INLINE Eight root(Eight x) {
#ifdef GEARSHIFT_AVX2
    return (Eight)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < 8; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}

// Rows need not be aligned to a vector boundary; these compile to unaligned moves.
template <class V>
GEARSHIFT_INLINE V load(const float* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
}
template <class V>
GEARSHIFT_INLINE void store(float* to, V value) {
    __builtin_memcpy(to, &value, sizeof(V));
}

// fn(column, tag): tag is an Eight for eight columns at a time, a float for the rest.
template <class Fn>
GEARSHIFT_INLINE void each_column(uint32_t width, Fn fn) {
    uint32_t c = 0;
    for (; c + 8 <= width; c += 8) fn(c, Eight{});
    for (; c < width; ++c) fn(c, 0.0f);
}

// Each optimizer of row_optimizer_list.h is a function of that name: the part's numbers, the row's weights and state, its
// summed gradient and the factor that makes it the mean, and t, the number of the row's updates including this one.

GEARSHIFT_INLINE void sgd(const PartStep& p, float* w, float*, const float* sums, float scale, uint32_t) {
    each_column(p.width, [&](uint32_t c, auto tag) {
        using V = decltype(tag);
        const V old = load<V>(w + c);
        store<V>(w + c, old - p.lr * (load<V>(sums + c) * scale + p.l2 * old));
    });
}

GEARSHIFT_INLINE void momentum(const PartStep& p, float* w, float* velocity, const float* sums, float scale, uint32_t) {
    each_column(p.width, [&](uint32_t c, auto tag) {
        using V = decltype(tag);
        const V old = load<V>(w + c);
        const V v = p.momentum * load<V>(velocity + c) + (load<V>(sums + c) * scale + p.l2 * old);
        store<V>(velocity + c, v);
        store<V>(w + c, old - p.lr * v);
    });
}

GEARSHIFT_INLINE void adagrad(const PartStep& p, float* w, float* squares, const float* sums, float scale, uint32_t) {
    each_column(p.width, [&](uint32_t c, auto tag) {
        using V = decltype(tag);
        const V old = load<V>(w + c);
        const V g = load<V>(sums + c) * scale + p.l2 * old;
        const V s = load<V>(squares + c) + g * g;
        store<V>(squares + c, s);
        store<V>(w + c, old - p.lr * g / (root(s) + p.eps));
    });
}

// The mean square is summed in eight lanes (column modulo 8), then pairwise.
GEARSHIFT_INLINE float mean_square(const PartStep& p, const float* w, const float* sums, float scale) {
    Eight lane = {};
    uint32_t c = 0;
    for (; c + 8 <= p.width; c += 8) {
        const Eight g = load<Eight>(sums + c) * scale + p.l2 * load<Eight>(w + c);
        lane += g * g;
    }
    for (; c < p.width; ++c) {
        const float g = sums[c] * scale + p.l2 * w[c];
        lane[c % 8] += g * g;
    }
    const float total = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    return total / static_cast<float>(p.width);
}

GEARSHIFT_INLINE void rowwise_adagrad(const PartStep& p, float* w, float* square, const float* sums, float scale,
                                      uint32_t) {
    const float s = *square + mean_square(p, w, sums, scale);
    *square = s;
    const float rate = p.lr / (root(s) + p.eps);
    each_column(p.width, [&](uint32_t c, auto tag) {
        using V = decltype(tag);
        const V old = load<V>(w + c);
        store<V>(w + c, old - rate * (load<V>(sums + c) * scale + p.l2 * old));
    });
}

// Kingma & Ba 2015, algorithm 1, with t = the number of updates of this row.
GEARSHIFT_INLINE void adam(const PartStep& p, float* w, float* state, const float* sums, float scale, uint32_t t) {
    const AdamCorrection fix = p.corrections->at(t);
    const float rate = p.lr * fix.first;
    float *m = state, *v = state + p.width;
    each_column(p.width, [&](uint32_t c, auto tag) {
        using V = decltype(tag);
        const V old = load<V>(w + c);
        const V g = load<V>(sums + c) * scale + p.l2 * old;
        const V first = p.beta1 * load<V>(m + c) + p.beta1_rest * g;
        const V second = p.beta2 * load<V>(v + c) + p.beta2_rest * (g * g);
        store<V>(m + c, first);
        store<V>(v + c, second);
        store<V>(w + c, old - rate * first / (root(second) * fix.second + p.eps));
    });
}

// McMahan et al. 2013, algorithm 1 (per coordinate). A rate of 0 leaves the part unchanged, because the
// closed form divides by the rate.
GEARSHIFT_INLINE void ftrl(const PartStep& p, float* w, float* state, const float* sums, float scale, uint32_t) {
    if (p.lr == 0.0f) return;
    float *z = state, *n = state + p.width;
    for (uint32_t c = 0; c < p.width; ++c) {
        const float g = sums[c] * scale;
        const float more = n[c] + g * g;
        const float sigma = (root(more) - root(n[c])) / p.lr;
        const float zc = z[c] + (g - sigma * w[c]);
        z[c] = zc;
        n[c] = more;
        const float past = (zc < 0 ? -zc : zc) - p.l1;
        const float size = past / ((p.beta + root(more)) / p.lr + p.l2);
        w[c] = past <= 0 ? 0.0f : (zc < 0 ? size : -size);
    }
}

// Summed in eight lanes (column modulo 8), then pairwise.
GEARSHIFT_INLINE float length(const float* x, uint32_t width, float scale) {
    Eight lane = {};
    uint32_t c = 0;
    for (; c + 8 <= width; c += 8) {
        const Eight v = load<Eight>(x + c) * scale;
        lane += v * v;
    }
    for (; c < width; ++c) lane[c % 8] += (x[c] * scale) * (x[c] * scale);
    return root(((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7])));
}

// CowClip (Zheng et al. 2022, algorithm 1): the scale that limits a row's gradient to the norm of its weights, times the
// number of occurrences of the id. l2 * weight is added afterwards.
GEARSHIFT_INLINE float clipped(const PartStep& p, const float* w, const float* sums, float scale, uint32_t count) {
    const float weights = length(w, p.width, 1.0f), gradient = length(sums, p.width, scale);
    const float longest = p.clip * static_cast<float>(count) * (weights < p.shortest ? p.shortest : weights);
    return longest < gradient ? scale * (longest / gradient) : scale;
}

struct Chunk {  // some rows of a push, in input order
    const Item* items;
    const RowAt* rows;
    const uint32_t* updates;  // including this one
    uint32_t count;
};

// One part of a chunk's rows. `part` is copied, so the compiler knows that writes to rows do not change it.
template <bool kClipped>
GEARSHIFT_INLINE void step_rows(const PartStep& part, const PushCall& call, const Chunk& chunk) {
    const PartStep p = part;
    float scale = call.scale;
    const float* sums_UW = call.sums_UW + p.column;
    const std::size_t width = call.layout.width;
    const auto each_row = [&](auto step) {
        for (uint32_t j = 0; j < chunk.count; ++j) {
            float* w = p.weights.of(chunk.rows[j]);
            const uint32_t position = chunk.items[j].position;
            const float* sums = sums_UW + position * width;
            if constexpr (kClipped) scale = clipped(p, w, sums, call.scale, call.counts_U[position]);
            step(w, p.state.of(chunk.rows[j]), sums, j);
        }
    };
    switch (p.kind) {
#define GEARSHIFT_STEP(name, state)                                                            \
    case OptimizerKind::name:                                                                  \
        return each_row([&](float* w, float* own_state, const float* sums, uint32_t j) {       \
            name(p, w, own_state, sums, scale, chunk.updates[j]);                              \
        });
        GEARSHIFT_ROW_OPTIMIZERS(GEARSHIFT_STEP)
#undef GEARSHIFT_STEP
    }
}

GEARSHIFT_INLINE void step_part(const PartStep& part, const PushCall& call, const Chunk& chunk) {
    return part.clip > 0 ? step_rows<true>(part, call, chunk) : step_rows<false>(part, call, chunk);
}

}  // namespace GEARSHIFT_KERNELS
}  // namespace gearshift
