#include "utf8.h"

#include <cstring>

namespace gearshift {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080ULL;

bool is_ascii_word(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return !(word & kHighBits);
}

bool continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The length of the character at `at` in bytes; 0 if it is invalid.
size_t character_length(const unsigned char* at) {
    const unsigned char lead = at[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || !continues(at[1])) return 0;
    if (lead < 0xE0) return 2;
    if (!continues(at[2])) return 0;
    if (lead < 0xF0) return (lead == 0xE0 && at[1] < 0xA0) || (lead == 0xED && at[1] > 0x9F) ? 0 : 3;
    if (lead > 0xF4 || !continues(at[3])) return 0;
    return (lead == 0xF0 && at[1] < 0x90) || (lead == 0xF4 && at[1] > 0x8F) ? 0 : 4;
}

// Whether these bytes are the start of an incomplete character.
bool may_go_on(const unsigned char* start, size_t size) {
    static constexpr unsigned char kContinuations[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    unsigned char whole[4];
    for (unsigned char filler : kContinuations) {
        std::memset(whole, filler, sizeof whole);
        std::memcpy(whole, start, size);
        if (character_length(whole) > size) return true;
    }
    return false;
}

}  // namespace

int64_t find_not_utf8(const char* data, size_t size, bool last) {
    size_t at = 0;
    while (at + 8 <= size) {
        if (is_ascii_word(data + at)) {
            at += 8;
            continue;
        }
        const size_t end = at + 5;  // a character that starts before it lies within the 8 bytes
        while (at < end) {
            const size_t length = character_length(reinterpret_cast<const unsigned char*>(data + at));
            if (length == 0) return static_cast<int64_t>(at);
            at += length;
        }
    }
    while (at < size) {  // the last few bytes, padded with zeros, which do not continue a character
        unsigned char rest[4] = {};
        const size_t left = size - at < 4 ? size - at : 4;
        std::memcpy(rest, data + at, left);
        const size_t length = character_length(rest);
        if (length == 0) return !last && may_go_on(rest, left) ? -1 : static_cast<int64_t>(at);
        at += length;
    }
    return -1;
}

char* write_utf8(char* out, uint32_t character) {
    const auto put = [&](uint32_t bits) { *out++ = static_cast<char>(bits); };
    if (character < 0x80) {
        put(character);
    } else if (character < 0x800) {
        put(0xC0 | character >> 6);
        put(0x80 | (character & 0x3F));
    } else if (character < 0x10000) {
        put(0xE0 | character >> 12);
        put(0x80 | (character >> 6 & 0x3F));
        put(0x80 | (character & 0x3F));
    } else {
        put(0xF0 | character >> 18);
        put(0x80 | (character >> 12 & 0x3F));
        put(0x80 | (character >> 6 & 0x3F));
        put(0x80 | (character & 0x3F));
    }
    return out;
}

}  // namespace gearshift
