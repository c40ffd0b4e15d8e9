// The id of a raw value: XXH64 of the value's bytes, seeded with the hash of its table's name, shifted to 63 bits.
//
// The id of a (table, value) pair never changes and is the same on every machine: checkpoints, prepared files and served
// models depend on it. Numbers hash like their text in a CSV file: whole numbers as integers ("17" and 17.0 agree),
// other floats by their shortest text, a missing value as an empty text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gearshift {

uint64_t xxh64(const char* bytes, size_t size, uint64_t seed);

inline uint64_t table_seed(std::string_view table) { return xxh64(table.data(), table.size(), 0); }

inline int64_t feature_id(std::string_view value, uint64_t seed) {
    return static_cast<int64_t>(xxh64(value.data(), value.size(), seed) >> 1);
}

int64_t feature_id(int64_t value, uint64_t seed);
int64_t feature_id(uint64_t value, uint64_t seed);
int64_t feature_id(double value, uint64_t seed);  // NaN is missing
int64_t feature_id(float value, uint64_t seed);

}  // namespace gearshift
