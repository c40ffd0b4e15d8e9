// Random text through every function of text_lines.h, json_lines.h, text_columns.h, utf8.h and feature_hash.h, under the sanitizers.
// Spans must stay inside the buffer; the sanitizers watch the rest.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <memory>
#include <random>

#include "feature_hash.h"
#include "json_lines.h"
#include "text_columns.h"
#include "text_times.h"
#include "utf8.h"

using namespace gearshift;

static std::mt19937 random_number(1);

static size_t below(size_t limit) { return random_number() % limit; }

static std::unique_ptr<char[]> random_text(size_t size) {
    static const char alphabet[] = "ab01,,\"\"\n\n\r \t;|-.:e[]'#Tn{}\\u\xc3\xa9";
    auto text = std::make_unique<char[]>(size);
    for (size_t i = 0; i < size; ++i) text[i] = alphabet[below(sizeof alphabet - 1)];
    return text;
}

static void parse_all(const TextColumn& column) {
    std::vector<double> doubles(column.size);
    std::vector<float> floats(column.size * 3);
    std::vector<int64_t> integers(column.size);
    const char decimal = below(2) ? '.' : ',';
    for (size_t at = 0; at < column.size; ++at) at = parse_floats(column, at, decimal, {doubles.data(), 1});
    for (size_t at = 0; at < column.size; ++at) at = parse_labels(column, at, {}, '.', {floats.data(), 1});
    for (size_t at = 0; at < column.size; ++at) at = parse_vectors(column, at, "|", 3, '.', {floats.data(), 3});
    for (size_t at = 0; at < column.size; ++at) at = parse_times(column, at, {integers.data(), 1});
    hash_column(column, 7, {integers.data(), 1});
    hash_parts(column, "|", below(3), below(2) ? KeepParts::first : KeepParts::last, 9, below(2) == 0);
}

static bool split_and_parse() {
    const size_t size = below(180);
    auto text = random_text(size + 64);
    const auto columns = static_cast<int32_t>(1 + below(4));
    int32_t wanted = 0;
    std::vector<int32_t> slots(static_cast<size_t>(columns));
    for (int32_t& slot : slots) slot = below(3) ? wanted++ : -1;
    const size_t room = 1 + below(8);
    std::vector<Span> spans(room * static_cast<size_t>(wanted));
    std::vector<uint32_t> lines(room);
    const char quote = below(2) ? '"' : '\0';
    const char escape = below(4) ? '\0' : '\\';
    const LineFormat format{",; \t"[below(4)], quote, escape, columns, below(4) == 0, below(2) == 0, slots.data(), wanted, 1 + below(5), below(2) == 0, below(8), 3 * 44 + below(3)};
    const SplitResult result = split_lines(text.get(), size, format, below(2) == 0, room, spans.data(), lines.data());
    if (result.consumed > size || result.records > room) return false;
    spans.resize(result.records * static_cast<size_t>(wanted));
    for (const Span& span : spans)
        if (size_t{span.start} + span.size > size) return false;
    if (!spans.empty()) {
        parse_all({text.get(), spans.data(), result.records, static_cast<size_t>(wanted)});
        blank_values(text.get(), spans.data(), result.records, static_cast<size_t>(wanted), {"a", "NULL"});
    }
    auto out = std::make_unique<char[]>(2 * size + 2);
    const LibfmResult libfm = strip_libfm(text.get(), size, below(2) == 0, out.get());
    return libfm.written <= 2 * size + 2 && libfm.consumed <= size;
}

// Text that is JSON for the most part, with some characters replaced.
static bool split_json_lines() {
    std::string text;
    for (size_t line = below(5); line; --line) text += R"({"a":{"b":"x\u00e9\ud83d\ude00\n"},"c":[1,"\u20ac",null],"d":-1.5e3,"e":true})" "\n";
    for (size_t changes = below(4); changes && !text.empty(); --changes) text[below(text.size())] = random_text(1)[0];
    if (below(3) == 0) text.resize(below(text.size() + 1));
    const size_t room = 1 + below(4);
    auto data = std::make_unique<char[]>(text.size());  // exactly as long: nothing behind it may be read
    std::copy(text.begin(), text.end(), data.get());
    std::vector<Span> spans(room * 3);
    std::vector<uint32_t> lines(room);
    const JsonResult result = split_json(data.get(), text.size(), {"a.b", "c", "d"}, below(2) == 0, room, spans.data(), lines.data());
    if (result.consumed > text.size() || result.records > room) return false;
    for (size_t i = 0; i < result.records * 3; ++i)
        if (size_t{spans[i].start} + spans[i].size > text.size()) return false;
    if (result.records) parse_all({data.get(), spans.data() + below(3), result.records, 3});
    std::copy(text.begin(), text.end(), data.get());
    json_paths(data.get(), text.size());
    const int64_t bad = find_not_utf8(data.get(), text.size(), below(2) == 0);
    return bad < static_cast<int64_t>(text.size());
}

int main() {
    for (int round = 0; round < 100'000; ++round) {
        if (!split_and_parse() || !split_json_lines()) return std::puts("a result lies outside its buffer"), 1;
        const uint64_t bits = uint64_t{random_number()} << 32 | random_number();
        epoch_seconds(static_cast<int64_t>(bits >> below(64)));
        feature_id(std::bit_cast<double>(bits), 1);
        feature_id(std::bit_cast<float>(static_cast<uint32_t>(bits)), 1);
    }
    epoch_seconds(INT64_MIN);
    epoch_seconds(INT64_MAX);
    std::puts("ok");
}
