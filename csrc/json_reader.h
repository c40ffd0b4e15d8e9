// Reads JSON one value at a time: strings, numbers and words as their text; lists and objects only for their syntax.
//
// It knows nothing about columns; json_lines.cpp builds on it. It follows RFC 8259, with the extensions of common
// writers: NaN and Infinity are values, and strings may contain control characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "json_lines.h"
#include "utf8.h"

namespace gearshift {

inline constexpr int kMaxDepth = 100;

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

inline int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

inline constexpr char kEscapes[] = "\"\\/bfnrt", kEscaped[] = "\"\\/\b\f\n\r\t";

// The character for a two-character escape; 0 if it is invalid.
inline char short_escape(char name) {
    const char* const found = name ? std::strchr(kEscapes, name) : nullptr;
    return found ? kEscaped[found - kEscapes] : '\0';
}

// `\u20AC` at `at`: its 16 bits, or -1.
inline int32_t hex_escape(const char* at, const char* end) {
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    int32_t bits = 0;
    for (int i = 2; i < 6; ++i) {
        const int digit = hex_digit(at[i]);
        if (digit < 0) return -1;
        bits = bits << 4 | digit;
    }
    return bits;
}

// The length of the escape at `at`; 0 if it is invalid.
inline int escape_length(const char* at, const char* end) {
    if (end - at >= 2 && short_escape(at[1])) return 2;
    return hex_escape(at, end) >= 0 ? 6 : 0;
}

// Resolves escapes, which have been checked, from `text` to `out`. Both may be the same buffer, because the result is
// never longer. Returns its end.
inline char* unescape(std::string_view text, char* out) {
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at < end) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        if (const char character = short_escape(at[1])) {
            *out++ = character;
            at += 2;
            continue;
        }
        int32_t character = hex_escape(at, end);
        at += 6;
        if (character >= 0xD800 && character < 0xE000) {  // one half of a surrogate pair, or an error
            const int32_t low = hex_escape(at, end);
            const bool is_pair = character < 0xDC00 && low >= 0xDC00 && low < 0xE000;
            character = is_pair ? 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
            at += is_pair ? 6 : 0;
        }
        out = write_utf8(out, static_cast<uint32_t>(character));
    }
    return out;
}

// Reads values from `at` on. Stops at the first unexpected character and sets `error`.
class JsonReader {
  public:
    JsonReader(const char* begin, const char* end) : at(begin), end_(end) {}

    const char* at;
    const char* error = nullptr;

    bool fail(const char* reason) {
        if (!error) error = reason;
        return false;
    }

    void skip_space() {
        while (at < end_ && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
    }

    bool is_at(char c) const { return at < end_ && *at == c; }

    bool take(char c, const char* otherwise) {
        skip_space();
        if (!is_at(c)) return fail(otherwise);
        ++at;
        return true;
    }

    bool is_at_end() {
        skip_space();
        return at == end_;
    }

    // A string, with or without escapes, which are checked here; `text` is the text between the quotes.
    bool string(std::string_view& text, bool& escaped) {
        if (!take('"', "expected a string in double quotes")) return false;
        const char* const begin = at;
        escaped = false;
        while (at < end_ && *at != '"') {
            if (*at != '\\') {
                ++at;
                continue;
            }
            const int length = escape_length(at, end_);
            if (length == 0) return fail("a bad escape in the string");
            escaped = true;
            at += length;
        }
        if (at == end_) return fail("the string does not end in this line");
        text = {begin, static_cast<size_t>(at++ - begin)};
        return true;
    }

    // A number or a word; an empty text for null and NaN.
    bool literal(std::string_view& text) {
        const char* const begin = at;
        for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
            if (!std::string_view(at, static_cast<size_t>(end_ - at)).starts_with(word)) continue;
            at += word.size();
            text = word == "null" || word == "NaN" ? std::string_view{} : std::string_view(begin, word.size());
            return true;
        }
        if (!number()) {
            at = begin;
            return fail("expected a value");
        }
        text = {begin, static_cast<size_t>(at - begin)};
        return true;
    }

    // Any value; only its syntax is checked.
    bool skip_value(int depth) {
        skip_space();
        if (depth > kMaxDepth) return fail("nested too deeply");
        if (is_at('[')) {
            uint8_t nesting;
            return list(nesting, depth);
        }
        std::string_view text;
        bool escaped;
        if (is_at('"')) return string(text, escaped);
        if (!is_at('{')) return literal(text);
        ++at;
        skip_space();
        if (is_at('}')) return ++at, true;
        do {
            if (skip_space(), !string(text, escaped) || !take(':', "expected a colon") || !skip_value(depth + 1)) return false;
        } while (next_member());
        return take('}', "expected a comma or }");
    }

    // A list; `nesting` receives the kinds of its items.
    bool list(uint8_t& nesting, int depth) {
        nesting = kLists;
        ++at;
        skip_space();
        if (is_at(']')) return ++at, true;
        do {
            skip_space();
            if (is_at('[')) nesting |= kListsOfLists;
            if (is_at('{')) nesting |= kListsOfObjects;
            if (!skip_value(depth + 1)) return false;
        } while (next_member());
        return take(']', "expected a comma or ]");
    }

    bool next_member() {
        skip_space();
        if (!is_at(',')) return false;
        ++at;
        return true;
    }

  private:
    bool digits() {
        const char* const begin = at;
        while (at < end_ && is_digit(*at)) ++at;
        return at > begin;
    }

    bool number() {
        if (is_at('-')) ++at;
        const bool leading_zero = is_at('0');
        const char* const begin = at;
        if (!digits() || (leading_zero && at - begin > 1)) return false;
        if (is_at('.') && (++at, !digits())) return false;
        if (!is_at('e') && !is_at('E')) return true;
        ++at;
        if (is_at('+') || is_at('-')) ++at;
        return digits();
    }

    const char* end_;
};

}  // namespace gearshift
