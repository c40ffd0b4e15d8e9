// Validates UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gearshift {

// The offset of the first byte that is not part of a valid character, or -1. Without `last` the buffer may end in the
// middle of a character.
int64_t find_not_utf8(const char* data, size_t size, bool last);

// Writes a character as UTF-8, up to 4 bytes; returns the end.
char* write_utf8(char* out, uint32_t character);

}  // namespace gearshift
