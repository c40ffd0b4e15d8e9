// Splits JSON lines into spans: the positions of the requested values of each object in a buffer, as in text_lines.h.
//
// A column is a path: "user.id" is `id` of the object `user`. A value is its text: a number as written, so an id of any
// size stays exact; a string without quotes and escapes (resolved in place); `true` and `false`; a list as JSON.
// `null`, NaN and an absent key are empty. If a key occurs twice, the last value counts. One line is one object; any
// other line is bad, and reading continues with the next line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text_lines.h"

namespace gearshift {

struct BadJson {
    uint32_t line;       // lines before it in the buffer
    uint32_t character;  // position in the line, from 0
    const char* reason;
};

// The kinds of values of a column, other than single values.
enum Nesting : uint8_t { kNoNesting = 0, kLists = 1, kListsOfLists = 2, kListsOfObjects = 4, kObjects = 8 };

struct JsonResult {
    size_t records = 0, consumed = 0, lines = 0;  // as in SplitResult
    std::vector<BadJson> bad;
    std::vector<uint8_t> nesting;  // [paths]
};

// `spans` has room for max_records * paths.size(). Without `last` a line without newline is left for the next call.
JsonResult split_json(char* data, size_t size, const std::vector<std::string>& paths, bool last, size_t max_records,
                      Span* spans, uint32_t* lines);

// The paths of all values, in order of appearance; paths that are always null come last.
std::vector<std::string> json_paths(char* data, size_t size);

// The items of a list of single values, without nulls; false if the text is not such a list. The items are views of
// `text` or of `unescaped`.
bool json_items(std::string_view text, std::vector<std::string_view>& items, std::string& unescaped);

}  // namespace gearshift
