#include "text_lines.h"

#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gearshift {
namespace {

// A bit mask of the bytes among 64 that are `a` or `b`.
uint64_t match_mask(const char* at, char a, char b) {
#if defined(__SSE2__)
    const __m128i first = _mm_set1_epi8(a), second = _mm_set1_epi8(b);
    uint64_t mask = 0;
    for (int lane = 0; lane < 4; ++lane) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * lane));
        const __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(bytes, first), _mm_cmpeq_epi8(bytes, second));
        mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(hit))) << (16 * lane);
    }
    return mask;
#else
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(at[i] == a || at[i] == b) << i;
    return mask;
#endif
}

// Steps through the delimiters and newlines of a buffer, 64 bytes at a time.
class Separators {
  public:
    Separators(const char* data, size_t size, char delimiter) : data_(data), size_(size), delimiter_(delimiter) { seek(0); }

    // The next one, or the buffer's size.
    size_t next() {
        while (mask_ == 0) {
            window_ += 64;
            if (window_ >= size_) return size_;
            mask_ = match_mask(data_ + window_, delimiter_, '\n');
        }
        const size_t found = window_ + static_cast<size_t>(std::countr_zero(mask_));
        mask_ &= mask_ - 1;
        return found < size_ ? found : size_;
    }

    // The next call of next() searches from `position` on.
    void seek(size_t position) {
        window_ = position;
        mask_ = position < size_ ? match_mask(data_ + position, delimiter_, '\n') : 0;
    }

  private:
    const char* data_;
    size_t size_;
    char delimiter_;
    size_t window_ = 0;
    uint64_t mask_ = 0;
};

struct QuotedField {
    size_t close;     // position of the closing quote; the buffer's size if there is none
    size_t newlines;  // inside the quotes
    bool escaped;     // contains a doubled or escaped quote
};

// Whether the byte at `at` follows an odd number of escapes, counted back to `begin`.
bool is_escaped(const char* data, size_t begin, size_t at, char escape) {
    size_t first = at;
    while (first > begin && data[first - 1] == escape) --first;
    return (at - first) % 2 == 1;
}

// Gives up after `most_lines` lines. An unclosed quote is searched only up to the next quote in the buffer, so all of them
// together cost one pass.
QuotedField find_close(const char* data, size_t open, size_t size, char quote, char escape, size_t most_lines) {
    QuotedField field{size, 0, false};
    size_t at = open + 1;
    while (at < size) {
        const void* hit = std::memchr(data + at, quote, size - at);
        const size_t found = hit ? static_cast<size_t>(static_cast<const char*>(hit) - data) : size;
        for (const char* p = data + at; (p = static_cast<const char*>(std::memchr(p, '\n', data + found - p))); ++p)
            if (++field.newlines >= most_lines) return field;
        if (found == size) break;
        if (escape && is_escaped(data, open + 1, found, escape)) {
            field.escaped = true;
            at = found + 1;
            continue;
        }
        if (found + 1 < size && data[found + 1] == quote) {
            field.escaped = true;
            at = found + 2;
            continue;
        }
        field.close = found;
        break;
    }
    return field;
}

// `"a ""b"" c"tail` -> `a "b" ctail`, and `"a \"b\" c"` -> `a "b" c`, in place, from the byte after the opening quote.
// An escape before any other character is text.
Span resolve_quotes(char* data, size_t begin, size_t end, char quote, char escape) {
    size_t write = begin;
    bool inside = true;
    for (size_t read = begin; read < end; ++read) {
        if (inside && escape && data[read] == escape && read + 1 < end) {
            if (data[read + 1] == escape) data[write++] = data[read++];
            else if (data[read + 1] == quote) ++read;
        } else if (inside && data[read] == quote) {
            if (read + 1 < end && data[read + 1] == quote) ++read;
            else { inside = false; continue; }
        }
        data[write++] = data[read];
    }
    return {static_cast<uint32_t>(begin), static_cast<uint32_t>(write - begin)};
}

// Walks over the records of one buffer. A record is written only when it is complete, so an unfinished one stays unchanged.
//
// A quote that is open at the end of its line may be a stray one. The record is accepted only if everything about it is
// consistent: the quote closes within `quoted_lines` lines, directly before a separator, and the record has the right
// number of columns. Otherwise only the record's first line is bad and reading continues with the next line: each stray
// quote costs its own line and never hides another.
class RecordSplitter {
  public:
    RecordSplitter(char* data, size_t size, const LineFormat& format, bool last)
        : data_(data), size_(size), format_(format), last_(last),
          trim_(format.trim && format.delimiter != ' '), separators_(data, size, format.delimiter) {}

    SplitResult run(size_t max_records, Span* spans, uint32_t* lines) {
        while (at_ < size_ && result_.records < max_records) {
            if (skip_blank_line()) continue;
            const Ending ending = read_record(spans + result_.records * static_cast<size_t>(format_.wanted));
            if (ending == Ending::unfinished) break;
            if (ending == Ending::broken_quote) {
                skip_line();
                continue;
            }
            if (columns_ != format_.columns) report(columns_);
            else keep(lines);
            line_ += newlines_ + 1;
            at_ = next_;
        }
        result_.consumed = at_;
        result_.lines = line_;
        return std::move(result_);
    }

  private:
    enum class Ending { whole, unfinished, broken_quote };

    struct Deferred { Span* span; size_t begin, end; };  // a field with quotes to resolve

    void keep(uint32_t* lines) {
        if (newlines_) result_.long_records.insert(result_.long_records.end(), {static_cast<uint32_t>(result_.records), static_cast<uint32_t>(newlines_ + 1)});
        const bool as_long = next_ - at_ - format_.header_size <= 2;  // plus a line end; wraps around if it is shorter
        if (as_long && format_.header_size && is_like_header()) result_.headers.push_back(static_cast<uint32_t>(result_.records));
        lines[result_.records++] = static_cast<uint32_t>(line_);
    }

    [[gnu::noinline]] bool is_like_header() const {
        size_t end = next_;
        if (end > at_ && data_[end - 1] == '\n') --end;
        if (end > at_ && data_[end - 1] == '\r') --end;
        if (end - at_ != format_.header_size) return false;
        uint32_t sum = 0;
        for (size_t at = at_; at < end; ++at) sum += static_cast<uint8_t>(data_[at]);
        return sum == format_.header_sum;
    }

    void report(int32_t problem) {
        result_.bad.push_back({static_cast<uint32_t>(line_), problem, static_cast<uint32_t>(line_ + opened_), static_cast<uint32_t>(line_ + newlines_)});
    }

    Ending broken(int32_t problem) {
        report(problem);
        return Ending::broken_quote;
    }

    void skip_line() {
        const void* end = std::memchr(data_ + at_, '\n', size_ - at_);
        at_ = end ? static_cast<size_t>(static_cast<const char*>(end) - data_) + 1 : size_;
        ++line_;
        separators_.seek(at_);
    }

    bool skip_blank_line() {
        size_t end = at_;
        if (data_[end] == '\r' && end + 1 < size_) ++end;
        if (data_[end] != '\n') return false;
        at_ = end + 1;
        ++line_;
        separators_.seek(at_);
        return true;
    }

    // Reads one record from at_ on; sets next_, columns_ and newlines_.
    Ending read_record(Span* spans) {
        deferred_.clear();
        columns_ = 0;
        newlines_ = opened_ = 0;
        for (size_t begin = at_;; ++begin) {
            size_t text_begin = begin, text_end = 0;
            bool quoted = false, escaped = false, crosses_lines = false;
            if (trim_)
                while (begin < size_ && data_[begin] == ' ') text_begin = ++begin;
            if (format_.quote && begin < size_ && data_[begin] == format_.quote) {
                const QuotedField field = find_close(data_, begin, size_, format_.quote, format_.escape, format_.quoted_lines);
                crosses_lines = field.newlines > 0;
                if (crosses_lines) opened_ = newlines_;
                newlines_ += field.newlines;
                if (field.close == size_) {
                    if (field.newlines >= format_.quoted_lines) return broken(BadRecord::kTooManyLines);
                    if (!last_) return Ending::unfinished;
                    opened_ = newlines_ - field.newlines;
                    return broken(BadRecord::kOpenQuote);
                }
                quoted = true;
                text_begin = begin + 1;
                text_end = field.close;
                escaped = field.escaped;
                separators_.seek(field.close + 1);
            }
            size_t end = separators_.next();
            if (format_.rest_in_last && columns_ + 1 == format_.columns)
                while (end < size_ && data_[end] != '\n') end = separators_.next();
            if (end == size_ && !last_) return Ending::unfinished;
            const bool line_ends = end == size_ || data_[end] == '\n';
            size_t stop = line_ends && end > begin && data_[end - 1] == '\r' ? end - 1 : end;
            if (trim_)
                while (stop > begin && data_[stop - 1] == ' ') --stop;
            if (!quoted) text_end = stop;
            else if (text_end + 1 != stop) {  // text after the closing quote
                if (crosses_lines) return broken(BadRecord::kTextAfterQuote);
                escaped = true;
                text_end = stop;
            }
            store(spans, text_begin, text_end, escaped);
            ++columns_;
            begin = end;
            if (line_ends) {
                next_ = end == size_ ? size_ : end + 1;
                break;
            }
        }
        if (newlines_ && columns_ != format_.columns) return broken(columns_);
        if (newlines_ && format_.doubt_quotes && is_whole_on_each_line()) return broken(BadRecord::kWholeLines);
        for (const Deferred& d : deferred_) *d.span = resolve_quotes(data_, d.begin, d.end, format_.quote, format_.escape);
        return Ending::whole;
    }

    // Whether every line of the record from at_ to next_ has all columns by itself. Its quotes are then two stray ones. With one
    // or two columns this may be coincidence.
    bool is_whole_on_each_line() const {
        if (format_.columns < 3) return false;
        int32_t columns = 1;
        for (size_t at = at_; at < next_; ++at) {
            if (data_[at] == format_.delimiter) ++columns;
            if (data_[at] != '\n' && at + 1 < next_) continue;
            if (columns != format_.columns) return false;
            columns = 1;
        }
        return true;
    }

    void store(Span* spans, size_t begin, size_t end, bool escaped) {
        const int32_t slot = columns_ < format_.columns ? format_.slots[columns_] : -1;
        if (slot < 0) return;
        spans[slot] = {static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)};
        if (escaped) deferred_.push_back({spans + slot, begin, end});
    }

    char* data_;
    size_t size_;
    const LineFormat& format_;
    bool last_;
    bool trim_;
    Separators separators_;
    SplitResult result_;
    std::vector<Deferred> deferred_;
    size_t at_ = 0, next_ = 0, line_ = 0;  // line_: lines before the record
    size_t newlines_ = 0, opened_ = 0;     // of the record: inside its quotes; before its last quoted field of several lines
    int32_t columns_ = 0;
};

bool is_one(const char* begin, const char* end) {
    if (begin == end || *begin++ != '1') return false;
    if (begin < end && *begin++ != '.') return false;
    for (; begin < end; ++begin)
        if (*begin != '0') return false;
    return true;
}

}  // namespace

SplitResult split_lines(char* data, size_t size, const LineFormat& format, bool last, size_t max_records, Span* spans,
                        uint32_t* lines) {
    return RecordSplitter(data, size, format, last).run(max_records, spans, lines);
}

LibfmResult strip_libfm(const char* data, size_t size, bool last, char* out) {
    LibfmResult result;
    const char* const end = data + size;
    char* write = out;
    for (const char* line = data; line < end;) {
        const char* stop = static_cast<const char*>(std::memchr(line, '\n', end - line));
        if (!stop && !last) break;
        const char* const next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (const void* comment = std::memchr(line, '#', stop - line)) stop = static_cast<const char*>(comment);
        const char* const line_out = write;
        int tokens = 0;
        for (const char* at = line; at < stop;) {
            if (*at == ' ' || *at == '\t' || *at == '\r') { ++at; continue; }
            const char* token = at;
            while (at < stop && *at != ' ' && *at != '\t' && *at != '\r') ++at;
            const char* colon = static_cast<const char*>(std::memchr(token, ':', at - token));
            if (colon && result.bad < 0 && !is_one(colon + 1, at)) result.bad = token - data;
            const size_t length = static_cast<size_t>((colon ? colon : at) - token);
            if (write != line_out) *write++ = ' ';
            std::memcpy(write, token, length);
            write += length;
            ++tokens;
        }
        if (tokens == 1) *write++ = ' ';  // a label alone: its features are empty, not absent
        *write++ = '\n';
        line = next;
        result.consumed = static_cast<size_t>(next - data);
    }
    result.written = static_cast<size_t>(write - out);
    return result;
}

}  // namespace gearshift
