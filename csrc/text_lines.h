// Splits delimited text (CSV, TSV, libfm) into spans: the position of each requested value of each record in a buffer.
//
// RFC 4180 quoting: a quote counts only at the start of a field; "" inside is one quote, and so is \" if the file uses
// escapes (`escape`); a quoted field may contain separators and newlines. CRLF, blank lines and a missing last newline are
// accepted. Every record knows its line. A bad record is always one line: reading continues with the next line, even if a
// quote was left open. Nothing is converted or copied here; escaped quotes are resolved in place once a record is complete.
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
    int32_t problem;   // the number of columns, or a problem with a quote:
    uint32_t opened;   // lines before the opening quote
    uint32_t closed;   // lines before the end of the record
    static constexpr int32_t kOpenQuote = -1;       // never closes
    static constexpr int32_t kTooManyLines = -2;    // does not close within `quoted_lines` lines
    static constexpr int32_t kTextAfterQuote = -3;  // closes on another line, in the middle of a value
    static constexpr int32_t kWholeLines = -4;      // closes on another line, but each line is a valid record
};

struct LineFormat {
    char delimiter = ',';
    char quote = '"';            // '\0': none
    char escape = '\0';          // marks a quote inside quotes as text; '\0': none
    int32_t columns = 0;         // every record must have this many
    bool rest_in_last = false;   // the last column takes the rest of the line, including delimiters
    bool trim = false;           // ignore spaces around values
    const int32_t* slots = nullptr;  // [columns]: the slot a column is stored in, or -1
    int32_t wanted = 0;          // slots per record
    size_t quoted_lines = 8;     // number of lines that a quoted value may span
    bool doubt_quotes = false;   // refuse kWholeLines
    size_t header_size = 0;      // size of the header line, to detect repetitions; 0: do not check
    uint32_t header_sum = 0;     // sum of its bytes, in any order
};

struct SplitResult {
    size_t records = 0;   // number of spans and lines written
    size_t consumed = 0;  // bytes used; the next call starts after them
    size_t lines = 0;     // newlines in these bytes
    std::vector<uint32_t> long_records;  // (record, lines) of each record that spans several lines
    std::vector<uint32_t> headers;       // records with the size and sum of the header: its names, in any order
    std::vector<BadRecord> bad;
};

// `data` must be readable 64 bytes past `size`. With `last` the final record needs no newline; otherwise an unfinished
// record is left unchanged for the next call.
SplitResult split_lines(char* data, size_t size, const LineFormat& format, bool last, size_t max_records,
                        Span* spans, uint32_t* lines);

struct LibfmResult {
    size_t written = 0;   // bytes of `out`: "label index index ...\n"
    size_t consumed = 0;  // bytes of `data` up to the last whole line
    int64_t bad = -1;     // offset in `data` of the first feature whose value is not 1, or -1
};

// Converts libfm/libsvm lines "label index:1 index:1 # comment" to space-separated text: ":1", comments, double and
// trailing spaces are removed. `out` has room for 2 * `size` + 2 bytes.
LibfmResult strip_libfm(const char* data, size_t size, bool last, char* out);

}  // namespace gearshift
