#include "utf8.h"

#include <cstring>

namespace gearshift {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080ULL;

// The first byte at or behind `at` that is not ASCII.
size_t skip_ascii(const char* data, size_t at, size_t size) {
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        std::memcpy(&word, data + at, sizeof word);
        if (word & kHighBits) break;
    }
    while (at < size && static_cast<unsigned char>(data[at]) < 0x80) ++at;
    return at;
}

struct Lead { int length; unsigned char low, high; };  // bytes, and the bounds of the second one

Lead lead_of(unsigned char byte) {
    if (byte < 0xC2) return {0, 0, 0};
    if (byte < 0xE0) return {2, 0x80, 0xBF};
    if (byte < 0xF0) return {3, static_cast<unsigned char>(byte == 0xE0 ? 0xA0 : 0x80), static_cast<unsigned char>(byte == 0xED ? 0x9F : 0xBF)};
    if (byte < 0xF5) return {4, static_cast<unsigned char>(byte == 0xF0 ? 0x90 : 0x80), static_cast<unsigned char>(byte == 0xF4 ? 0x8F : 0xBF)};
    return {0, 0, 0};
}

}  // namespace

int64_t find_not_utf8(const char* data, size_t size, bool last) {
    for (size_t at = skip_ascii(data, 0, size); at < size; at = skip_ascii(data, at, size)) {
        const Lead lead = lead_of(static_cast<unsigned char>(data[at]));
        if (lead.length == 0) return static_cast<int64_t>(at);
        for (size_t i = 1; i < static_cast<size_t>(lead.length); ++i) {
            if (at + i == size) return last ? static_cast<int64_t>(at) : -1;
            const auto byte = static_cast<unsigned char>(data[at + i]);
            const unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
            if (byte < low || byte > high) return static_cast<int64_t>(at);
        }
        at += static_cast<size_t>(lead.length);
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
