#include "text_columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "feature_hash.h"
#include "json_lines.h"
#include "text_times.h"

namespace gearshift {
namespace {

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
    return text.size() == lower.size() &&
           std::equal(text.begin(), text.end(), lower.begin(), [](char a, char b) { return (a | 0x20) == b; });
}

// Common spellings of "not a number". As a category, such a word is an ordinary value.
bool is_missing_word(std::string_view text) {
    constexpr std::string_view kWords[] = {"nan", "null", "none", "na", "n/a"};
    if (text.empty() || text == "?" || text == "-" || text == "\\N") return true;
    return std::any_of(std::begin(kWords), std::end(kWords), [&](auto word) { return equals_ignoring_case(text, word); });
}

// Up to 15 digits with a sign: typical of click logs, and exact in a double.
bool parse_short_integer(std::string_view text, double& out) {
    const bool negative = !text.empty() && text.front() == '-';
    if (negative) text.remove_prefix(1);
    if (text.empty() || text.size() > 15) return false;
    int64_t value = 0;
    for (char c : text) {
        if (c < '0' || c > '9') return false;
        value = value * 10 + (c - '0');
    }
    out = static_cast<double>(negative ? -value : value);
    return true;
}

bool parse_double(std::string_view text, char decimal, double& out) {
    if (parse_short_integer(text, out)) return true;
    text = trimmed(text);
    if (is_missing_word(text)) {
        out = std::numeric_limits<double>::quiet_NaN();
        return true;
    }
    if (text.front() == '+') text.remove_prefix(1);
    char copy[64];
    if (decimal != '.') {
        if (text.size() > sizeof copy || text.find('.') != std::string_view::npos) return false;
        std::replace_copy(text.begin(), text.end(), copy, decimal, '.');
        text = {copy, text.size()};
    }
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc::result_out_of_range && end == text.data() + text.size()) {
        // Underflow gives zero; overflow is refused like an infinity.
        const size_t exponent = text.find_first_of("eE");
        if (exponent == std::string_view::npos || exponent + 1 >= text.size() || text[exponent + 1] != '-') return false;
        out = 0;
        return true;
    }
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

bool is_enclosed(std::string_view text, char open, char close) {
    return text.size() >= 2 && text.front() == open && text.back() == close;
}

// Splits values into parts. With `json` a list is JSON, regardless of the separator.
class PartCutter {
  public:
    PartCutter(std::string_view separator, bool json) : separator_(separator), json_(json) {}

    // Calls `part` for each part that is not empty.
    template <typename Part>
    void each(std::string_view text, Part part) {
        if (json_ && text.starts_with('[') && json_items(text, items_, unescaped_)) {
            for (std::string_view item : items_) part(item);
            return;
        }
        const bool is_list = is_enclosed(text, '[', ']');  // as JSON and Python print it: ['a', 'b']
        if (is_list) text = text.substr(1, text.size() - 2);
        while (!text.empty()) {
            const size_t cut = separator_.size() == 1 ? text.find(separator_.front()) : text.find(separator_);
            std::string_view piece = trimmed(text.substr(0, cut));
            if (is_list && (is_enclosed(piece, '\'', '\'') || is_enclosed(piece, '"', '"'))) piece = piece.substr(1, piece.size() - 2);
            if (!piece.empty()) part(piece);
            if (cut == std::string_view::npos) return;
            text.remove_prefix(cut + separator_.size());
        }
    }

  private:
    std::string_view separator_;
    bool json_;
    std::vector<std::string_view> items_;
    std::string unescaped_;
};

bool is_bit_set(const uint8_t* bits, size_t i) { return bits[i / 8] >> (i % 8) & 1; }

}  // namespace

void hash_column(const TextColumn& column, uint64_t seed, Strided<int64_t> out) {
    for (size_t i = 0; i < column.size; ++i) out[i] = feature_id(column[i], seed);
}

RaggedIds hash_parts(const TextColumn& column, std::string_view separator, size_t max_len, KeepParts keep, uint64_t seed, bool json) {
    RaggedIds out;
    PartCutter parts(separator, json);
    out.offsets.reserve(column.size + 1);
    out.offsets.push_back(0);
    for (size_t i = 0; i < column.size; ++i) {
        const size_t begin = out.ids.size();
        parts.each(column[i], [&](std::string_view part) { out.ids.push_back(feature_id(part, seed)); });
        const size_t length = out.ids.size() - begin;
        if (length > max_len) {
            const auto first = out.ids.begin() + static_cast<std::ptrdiff_t>(begin);
            if (keep == KeepParts::last) std::copy(out.ids.end() - static_cast<std::ptrdiff_t>(max_len), out.ids.end(), first);
            out.ids.resize(begin + max_len);
        }
        out.offsets.push_back(static_cast<int64_t>(out.ids.size()));
    }
    return out;
}

size_t parse_floats(const TextColumn& column, size_t begin, char decimal, Strided<double> out) {
    for (size_t i = begin; i < column.size; ++i)
        if (!parse_double(column[i], decimal, out[i])) return i;
    return column.size;
}

size_t parse_vectors(const TextColumn& column, size_t begin, std::string_view separator, size_t width, char decimal,
                     Strided<float> out, bool json) {
    PartCutter parts(separator, json);
    for (size_t i = begin; i < column.size; ++i) {
        size_t count = 0;
        bool good = true;
        parts.each(column[i], [&](std::string_view part) {
            double value = 0;
            good = good && parse_double(part, decimal, value) && count < width;
            if (good) (&out[i])[count++] = static_cast<float>(value);
        });
        if (count == 0 && good) std::fill_n(&out[i], width, std::numeric_limits<float>::quiet_NaN());
        else if (!good || count != width) return i;
    }
    return column.size;
}

size_t parse_labels(const TextColumn& column, size_t begin, const std::vector<std::string>& positives, char decimal,
                    Strided<float> out) {
    std::vector<double> numbers;
    for (const std::string& positive : positives) {
        double value = 0;
        if (parse_double(positive, '.', value)) numbers.push_back(value);
    }
    const auto is_positive = [&](std::string_view text) {
        if (std::find(positives.begin(), positives.end(), text) != positives.end()) return true;
        double value = 0;
        return !numbers.empty() && parse_double(text, decimal, value)
            && std::find(numbers.begin(), numbers.end(), value) != numbers.end();
    };
    for (size_t i = begin; i < column.size; ++i) {
        const std::string_view text = trimmed(column[i]);
        double value = 0;
        if (text.empty()) return i;
        if (!positives.empty()) out[i] = is_positive(text) ? 1.0f : 0.0f;
        else if (text == "0" || text == "1") out[i] = static_cast<float>(text.front() - '0');
        else if (equals_ignoring_case(text, "true")) out[i] = 1.0f;
        else if (equals_ignoring_case(text, "false")) out[i] = 0.0f;
        else if (parse_double(text, '.', value) && (value == 1 || value == 0)) out[i] = static_cast<float>(value);
        else return i;
    }
    return column.size;
}

size_t parse_times(const TextColumn& column, size_t begin, Strided<int64_t> out) {
    for (size_t i = begin; i < column.size; ++i)
        if (!parse_time(trimmed(column[i]), out[i])) return i;
    return column.size;
}

template <typename Offset>
void arrow_spans(const Offset* offsets, const uint8_t* validity, size_t bit_offset, size_t size, Span* out) {
    const Offset base = size ? offsets[0] : Offset{0};
    for (size_t i = 0; i < size; ++i) {
        const bool present = !validity || is_bit_set(validity, bit_offset + i);
        out[i] = {static_cast<uint32_t>(offsets[i] - base), present ? static_cast<uint32_t>(offsets[i + 1] - offsets[i]) : 0u};
    }
}

template void arrow_spans<int32_t>(const int32_t*, const uint8_t*, size_t, size_t, Span*);
template void arrow_spans<int64_t>(const int64_t*, const uint8_t*, size_t, size_t, Span*);

void blank_values(const char* data, Span* spans, size_t size, size_t stride, const std::vector<std::string>& missing) {
    for (size_t i = 0; i < size; ++i) {
        Span& span = spans[i * stride];
        for (const std::string& text : missing)
            if (span.size == text.size() && std::memcmp(data + span.start, text.data(), text.size()) == 0) span.size = 0;
    }
}

}  // namespace gearshift
