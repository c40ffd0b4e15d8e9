// Converts one column of text values to ids, numbers, labels or times.
//
// A column is a buffer and a span per value; an empty value is missing. Parsers return the index of the first value that
// they cannot read, or `size`. The caller knows its file and line, and may continue after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text_lines.h"

namespace gearshift {

struct TextColumn {
    const char* data;
    const Span* spans;
    size_t size;
    size_t stride;  // in spans: a column of a [records, slots] array

    std::string_view operator[](size_t i) const {
        const Span span = spans[i * stride];
        return {data + span.start, span.size};
    }
};

template <typename Value>
struct Strided {
    Value* data;
    size_t stride;

    Value& operator[](size_t i) const { return data[i * stride]; }
};

struct RaggedIds {
    std::vector<int64_t> ids;
    std::vector<int64_t> offsets;  // size + 1
};

enum class KeepParts { first, last };

void hash_column(const TextColumn& column, uint64_t seed, Strided<int64_t> out);

// Values split at `separator` (not empty). Spaces around parts, empty parts, and the brackets and quotes of a printed list
// are ignored; at most `max_len` parts of a value are kept. With `json` a list is JSON and has its own separators.
RaggedIds hash_parts(const TextColumn& column, std::string_view separator, size_t max_len, KeepParts keep, uint64_t seed,
                     bool json = false);

// Missing values, and words for them (nan, NULL, NA, \N, ?, -), give NaN; infinities are refused.
size_t parse_floats(const TextColumn& column, size_t begin, char decimal, Strided<double> out);

// `width` floats per value, joined by `separator`.
size_t parse_vectors(const TextColumn& column, size_t begin, std::string_view separator, size_t width, char decimal,
                     Strided<float> out, bool json = false);

// 1 for the values in `positives`, 0 for any other; without `positives`: 1 and true against 0 and false. A positive that is
// a number also matches other spellings of that number: 4 matches 4.0.
size_t parse_labels(const TextColumn& column, size_t begin, const std::vector<std::string>& positives, char decimal,
                    Strided<float> out);

// Epoch seconds, as text_times.h reads them.
size_t parse_times(const TextColumn& column, size_t begin, Strided<int64_t> out);

// Spans of an Arrow string array; a null becomes an empty value. `validity` may be null.
template <typename Offset>
void arrow_spans(const Offset* offsets, const uint8_t* validity, size_t bit_offset, size_t size, Span* out);

// Replaces values that mean "missing" by empty ones.
void blank_values(const char* data, Span* spans, size_t size, size_t stride, const std::vector<std::string>& missing);

}  // namespace gearshift
