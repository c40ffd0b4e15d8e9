#include "feature_hash.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

namespace gearshift {
namespace {

static_assert(std::endian::native == std::endian::little, "lanes are read as little-endian words");

// The names and the order of steps are those of the xxHash specification (doc/xxhash_spec.md, XXH64).
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;

template <typename Word>
Word load(const char* at) {
    Word word;
    std::memcpy(&word, at, sizeof word);
    return word;
}

uint64_t round(uint64_t accumulator, uint64_t lane) {
    return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

uint64_t merge(uint64_t accumulator, uint64_t lane_accumulator) {
    return (accumulator ^ round(0, lane_accumulator)) * kPrime1 + kPrime4;
}

// Steps 1-3 for inputs of 32 bytes and more; moves `at` past the last whole stripe.
uint64_t hash_stripes(const char*& at, const char* end, uint64_t seed) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; end - at >= 32; at += 32)
        for (int lane = 0; lane < 4; ++lane) lanes[lane] = round(lanes[lane], load<uint64_t>(at + 8 * lane));
    uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) hash = merge(hash, lane);
    return hash;
}

template <typename Number>
int64_t id_of_whole(Number value, uint64_t seed) {
    char text[24];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return feature_id(std::string_view(text, end - text), seed);
}

// The text of Python's repr(): plain decimals from 1e-4 up to 1e16, an exponent otherwise.
template <typename Float>
int64_t id_of_float(Float value, uint64_t seed) {
    if (std::isnan(value)) return feature_id(std::string_view{}, seed);
    if (value == std::trunc(value) && std::abs(value) < Float(9.2e18)) return id_of_whole(static_cast<int64_t>(value), seed);
    char text[40];
    const Float size = std::abs(value);
    const auto format = size >= Float(1e-4) && size < Float(1e16) ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::isinf(value) ? std::to_chars(text, text + sizeof text, value).ptr
                                       : std::to_chars(text, text + sizeof text, value, format).ptr;
    return feature_id(std::string_view(text, end - text), seed);
}

}  // namespace

uint64_t xxh64(const char* bytes, size_t size, uint64_t seed) {
    const char* at = bytes;
    const char* const end = bytes + size;
    uint64_t hash = (size >= 32 ? hash_stripes(at, end, seed) : seed + kPrime5) + size;
    for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ round(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
    if (end - at >= 4) {
        hash = std::rotl(hash ^ load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
        at += 4;
    }
    for (; at < end; ++at) hash = std::rotl(hash ^ static_cast<uint8_t>(*at) * kPrime5, 11) * kPrime1;
    hash = (hash ^ (hash >> 33)) * kPrime2;
    hash = (hash ^ (hash >> 29)) * kPrime3;
    return hash ^ (hash >> 32);
}

int64_t feature_id(int64_t value, uint64_t seed) { return id_of_whole(value, seed); }
int64_t feature_id(uint64_t value, uint64_t seed) { return id_of_whole(value, seed); }
int64_t feature_id(double value, uint64_t seed) { return id_of_float(value, seed); }
int64_t feature_id(float value, uint64_t seed) { return id_of_float(value, seed); }

}  // namespace gearshift
