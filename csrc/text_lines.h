// Delimited text (CSV, TSV, libfm) cut into spans: where in a buffer each wanted value of each record lies.
//
// RFC 4180 quoting: a quote counts at the start of a field only; "" inside is one quote, and so is \" where the file
// is written that way (`escape`); a quoted field may hold separators and newlines. CRLF, blank lines and a missing last newline are fine. Every record knows its line.
// A bad record is always one line: behind it reading goes on with the next line, also if a quote was left open.
// Nothing is converted or copied here; escaped quotes are resolved in place once their record is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gearshift {

struct Span {
    uint32_t start;
    uint32_t size;
};

struct BadRecord {
    uint32_t line;     // lines before it in the buffer
    int32_t problem;   // how many columns it has, or what is wrong with a quote:
    uint32_t opened;   // lines before the one where that quote opens
    uint32_t closed;   // lines before the one where the record would end
    static constexpr int32_t kOpenQuote = -1;       // never closes
    static constexpr int32_t kTooManyLines = -2;    // does not close within `quoted_lines` lines
    static constexpr int32_t kTextAfterQuote = -3;  // closes on another line, in the middle of a value
    static constexpr int32_t kWholeLines = -4;      // closes on another line, but each line is a record by itself
};

struct LineFormat {
    char delimiter = ',';
    char quote = '"';            // '\0': none
    char escape = '\0';          // before a quote inside quotes: the field goes on; '\0': none
    int32_t columns = 0;         // every record must have as many
    bool rest_in_last = false;   // the last column takes the rest of the line, delimiters included
    bool trim = false;           // spaces around a value do not count
    const int32_t* slots = nullptr;  // [columns]: the slot a column is stored in, or -1
    int32_t wanted = 0;          // slots per record
    size_t quoted_lines = 8;     // how many lines a quoted value may span
    bool doubt_quotes = false;   // refuse kWholeLines
    size_t header_size = 0;      // of the line that names the columns, to find it again further down; 0: not looked for
    uint32_t header_sum = 0;     // of its bytes, whatever their order
};

struct SplitResult {
    size_t records = 0;   // spans and lines that were written
    size_t consumed = 0;  // bytes of the buffer behind which the next call starts
    size_t lines = 0;     // newlines in these bytes
    std::vector<uint32_t> long_records;  // (record, lines) of each that spans several
    std::vector<uint32_t> headers;       // records that have size and sum of the header: its names, in any order
    std::vector<BadRecord> bad;
};

// `data` must be readable 64 bytes past `size`. With `last` the final record needs no newline; without it an
// unfinished record is left for the next call, untouched.
SplitResult split_lines(char* data, size_t size, const LineFormat& format, bool last, size_t max_records,
                        Span* spans, uint32_t* lines);

struct LibfmResult {
    size_t written = 0;   // bytes of `out`: "label index index ...\n"
    size_t consumed = 0;  // bytes of `data` up to the last whole line
    int64_t bad = -1;     // offset in `data` of the first feature whose value is not 1, or -1
};

// libfm/libsvm lines "label index:1 index:1 # comment" as space separated text: ":1", comments, doubled and
// trailing spaces are dropped. `out` has room for 2 * `size` + 2 bytes.
LibfmResult strip_libfm(const char* data, size_t size, bool last, char* out);

}  // namespace gearshift
