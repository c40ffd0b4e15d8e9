// Python bindings of feature_hash.h, json_lines.h, text_lines.h, text_columns.h and utf8.h: arrays in, arrays out, without GIL.
//
// A text column is passed as (data, spans): a byte buffer and a uint32 array [n, 2] of (start, size), which may be a
// strided view of [records, slots, 2]. Arrays are never converted (.noconvert()), because results written to a temporary
// copy would be lost.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "feature_hash.h"
#include "json_lines.h"
#include "text_columns.h"
#include "text_lines.h"
#include "text_times.h"
#include "utf8.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gearshift;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Spans = nb::ndarray<const uint32_t, nb::shape<-1, 2>, nb::device::cpu>;
using WritableSpans = nb::ndarray<uint32_t, nb::shape<-1, 2>, nb::device::cpu>;
template <typename Value>
using Vector = nb::ndarray<Value, nb::ndim<1>, nb::device::cpu>;
template <typename Value>
using Dense = nb::ndarray<Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kPadding = 64;  // split_lines reads whole 64-byte windows

const char* chars(const Bytes& data) { return reinterpret_cast<const char*>(data.data()); }
char* chars(const WritableBytes& data) { return reinterpret_cast<char*>(data.data()); }

template <typename Array>
size_t span_stride(const Array& spans) {
    if (spans.shape(0) > 0 && (spans.stride(1) != 1 || spans.stride(0) % 2 != 0)) throw std::invalid_argument("spans must be pairs");
    return static_cast<size_t>(spans.stride(0)) / 2;
}

TextColumn text_column(const Bytes& data, const Spans& spans) {
    return {chars(data), reinterpret_cast<const Span*>(spans.data()), spans.shape(0), span_stride(spans)};
}

template <typename Value>
Strided<Value> strided(const Vector<Value>& out, size_t size) {
    if (out.shape(0) != size) throw std::invalid_argument("the output has another length than the column");
    return {out.data(), static_cast<size_t>(out.stride(0))};
}

char one_char(const std::string& text) {
    if (text.size() > 1) throw std::invalid_argument("expected one character");
    return text.empty() ? '\0' : text.front();
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> to_numpy(std::vector<int64_t>&& values) {
    auto* kept = new std::vector<int64_t>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
    return {kept->data(), {kept->size()}, owner};
}

nb::tuple split(const WritableBytes& data, size_t size, const std::string& delimiter, const std::string& quote,
                const Dense<const int32_t>& slots, int wanted, bool rest_in_last, bool trim, bool last, size_t quoted_lines, bool doubt_quotes,
                const nb::ndarray<uint32_t, nb::shape<-1, -1, 2>, nb::c_contig, nb::device::cpu>& spans,
                const Dense<uint32_t>& lines, const std::string& escape, const nb::bytes& header) {
    if (size + kPadding > data.shape(0) || size > UINT32_MAX) throw std::invalid_argument("the buffer needs 64 bytes of padding");
    if (spans.shape(1) != static_cast<size_t>(wanted) || spans.shape(0) != lines.shape(0)) throw std::invalid_argument("spans and lines differ");
    LineFormat format{one_char(delimiter), one_char(quote), one_char(escape), static_cast<int32_t>(slots.shape(0)), rest_in_last, trim,
                      slots.data(), wanted, quoted_lines, doubt_quotes, header.size()};
    for (size_t i = 0; i < header.size(); ++i) format.header_sum += static_cast<uint8_t>(header.c_str()[i]);
    SplitResult result;
    {
        nb::gil_scoped_release release;
        result = split_lines(chars(data), size, format, last, lines.shape(0), reinterpret_cast<Span*>(spans.data()), lines.data());
    }
    nb::list bad;
    for (const BadRecord& record : result.bad) bad.append(nb::make_tuple(record.line, record.problem, record.opened, record.closed));
    return nb::make_tuple(result.records, result.consumed, result.lines, bad, result.long_records, result.headers);
}

nb::tuple json_lines(const WritableBytes& data, size_t size, const std::vector<std::string>& paths, bool last,
                     const nb::ndarray<uint32_t, nb::shape<-1, -1, 2>, nb::c_contig, nb::device::cpu>& spans,
                     const Dense<uint32_t>& lines) {
    if (size > data.shape(0) || size > UINT32_MAX) throw std::invalid_argument("the buffer is too small");
    if (spans.shape(1) != paths.size() || spans.shape(0) != lines.shape(0)) throw std::invalid_argument("spans and lines differ");
    JsonResult result;
    {
        nb::gil_scoped_release release;
        result = split_json(chars(data), size, paths, last, lines.shape(0), reinterpret_cast<Span*>(spans.data()), lines.data());
    }
    nb::list bad, nesting;
    for (const BadJson& line : result.bad) bad.append(nb::make_tuple(line.line, line.character, line.reason));
    for (const uint8_t kind : result.nesting) nesting.append(static_cast<int>(kind));
    return nb::make_tuple(result.records, result.consumed, result.lines, bad, nesting);
}

nb::tuple libfm(const Bytes& data, size_t size, bool last, const WritableBytes& out) {
    if (size > data.shape(0) || 2 * size + 2 + kPadding > out.shape(0)) throw std::invalid_argument("the buffers are too small");
    LibfmResult result;
    {
        nb::gil_scoped_release release;
        result = strip_libfm(chars(data), size, last, chars(out));
    }
    return nb::make_tuple(result.written, result.consumed, result.bad);
}

nb::tuple parts(const Bytes& data, const Spans& spans, const std::string& separator, size_t max_len, bool keep_last, uint64_t seed, bool json) {
    if (separator.empty()) throw std::invalid_argument("an empty separator");
    RaggedIds result;
    {
        nb::gil_scoped_release release;
        result = hash_parts(text_column(data, spans), separator, max_len, keep_last ? KeepParts::last : KeepParts::first, seed, json);
    }
    return nb::make_tuple(to_numpy(std::move(result.ids)), to_numpy(std::move(result.offsets)));
}

template <typename Value>
void hash_numbers(const Vector<const Value>& values, uint64_t seed, const Vector<int64_t>& out) {
    const Strided<int64_t> ids = strided(out, values.shape(0));
    const auto stride = static_cast<size_t>(values.stride(0));
    for (size_t i = 0; i < values.shape(0); ++i) ids[i] = feature_id(values.data()[i * stride], seed);
}

template <typename Offset>
void spans_of_arrow(const Dense<const Offset>& offsets, const Bytes& validity, size_t bit_offset, const WritableSpans& out) {
    const size_t size = out.shape(0);
    const bool has_nulls = validity.shape(0) > 0;
    if (offsets.shape(0) < size + 1 || (has_nulls && validity.shape(0) * 8 < bit_offset + size)) throw std::invalid_argument("buffers too short");
    if (size && span_stride(out) != 1) throw std::invalid_argument("the spans must be contiguous");
    arrow_spans(offsets.data(), has_nulls ? validity.data() : nullptr, bit_offset, size, reinterpret_cast<Span*>(out.data()));
}

}  // namespace

void bind_text(nb::module_& m) {
    using Release = nb::call_guard<nb::gil_scoped_release>;

    m.def("xxh64", [](nb::bytes value, uint64_t seed) { return xxh64(value.c_str(), value.size(), seed); }, "value"_a, "seed"_a = 0);
    m.def("table_seed", [](const std::string& table) { return table_seed(table); }, "table"_a);

    m.def("split_lines", &split, "data"_a.noconvert(), "size"_a, "delimiter"_a, "quote"_a, "slots"_a.noconvert(), "wanted"_a,
          "rest_in_last"_a, "trim"_a, "last"_a, "quoted_lines"_a, "doubt_quotes"_a, "spans"_a.noconvert(), "lines"_a.noconvert(), "escape"_a = "", "header"_a = nb::bytes("", 0));
    m.def("split_json", &json_lines, "data"_a.noconvert(), "size"_a, "paths"_a, "last"_a, "spans"_a.noconvert(), "lines"_a.noconvert());
    m.def("json_paths", [](const WritableBytes& data, size_t size) {
        if (size > data.shape(0)) throw std::invalid_argument("the buffer is too small");
        return json_paths(chars(data), size);
    }, "data"_a.noconvert(), "size"_a);
    m.def("find_not_utf8", [](const Bytes& data, size_t size, bool last) {
        if (size > data.shape(0)) throw std::invalid_argument("the buffer is too small");
        return find_not_utf8(chars(data), size, last);
    }, "data"_a.noconvert(), "size"_a, "last"_a, Release());
    m.def("strip_libfm", &libfm, "data"_a.noconvert(), "size"_a, "last"_a, "out"_a.noconvert());

    m.def("hash_text", [](const Bytes& data, const Spans& spans, uint64_t seed, const Vector<int64_t>& out) {
        hash_column(text_column(data, spans), seed, strided(out, spans.shape(0)));
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "seed"_a, "out"_a.noconvert(), Release());
    m.def("hash_parts", &parts, "data"_a.noconvert(), "spans"_a.noconvert(), "separator"_a, "max_len"_a, "keep_last"_a, "seed"_a, "json"_a = false);
    m.def("hash_numbers", &hash_numbers<int64_t>, "values"_a.noconvert(), "seed"_a, "out"_a.noconvert(), Release());
    m.def("hash_numbers", &hash_numbers<uint64_t>, "values"_a.noconvert(), "seed"_a, "out"_a.noconvert(), Release());
    m.def("hash_numbers", &hash_numbers<double>, "values"_a.noconvert(), "seed"_a, "out"_a.noconvert(), Release());
    m.def("hash_numbers", &hash_numbers<float>, "values"_a.noconvert(), "seed"_a, "out"_a.noconvert(), Release());

    m.def("parse_floats", [](const Bytes& data, const Spans& spans, size_t begin, const std::string& decimal, const Vector<double>& out) {
        return parse_floats(text_column(data, spans), begin, one_char(decimal), strided(out, spans.shape(0)));
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "begin"_a, "decimal"_a, "out"_a.noconvert(), Release());
    m.def("parse_vectors", [](const Bytes& data, const Spans& spans, size_t begin, const std::string& separator, const std::string& decimal,
                              const nb::ndarray<float, nb::ndim<2>, nb::device::cpu>& out, bool json) {
        if (separator.empty()) throw std::invalid_argument("an empty separator");
        if (out.shape(0) != spans.shape(0) || (out.shape(0) > 0 && out.shape(1) > 1 && out.stride(1) != 1)) throw std::invalid_argument("output of another shape");
        return parse_vectors(text_column(data, spans), begin, separator, out.shape(1), one_char(decimal), {out.data(), static_cast<size_t>(out.stride(0))}, json);
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "begin"_a, "separator"_a, "decimal"_a, "out"_a.noconvert(), "json"_a = false, Release());
    m.def("parse_labels", [](const Bytes& data, const Spans& spans, size_t begin, const std::vector<std::string>& positives,
                             const std::string& decimal, const Vector<float>& out) {
        return parse_labels(text_column(data, spans), begin, positives, one_char(decimal), strided(out, spans.shape(0)));
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "begin"_a, "positives"_a, "decimal"_a, "out"_a.noconvert(), Release());
    m.def("parse_times", [](const Bytes& data, const Spans& spans, size_t begin, const Vector<int64_t>& out) {
        return parse_times(text_column(data, spans), begin, strided(out, spans.shape(0)));
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "begin"_a, "out"_a.noconvert(), Release());
    m.def("epoch_seconds", [](const Vector<const int64_t>& numbers, const Vector<int64_t>& out) {
        const Strided<int64_t> seconds = strided(out, numbers.shape(0));
        for (size_t i = 0; i < numbers.shape(0); ++i) seconds[i] = epoch_seconds(numbers.data()[i * static_cast<size_t>(numbers.stride(0))]);
    }, "numbers"_a.noconvert(), "out"_a.noconvert(), Release());

    m.def("arrow_spans", &spans_of_arrow<int32_t>, "offsets"_a.noconvert(), "validity"_a.noconvert(), "bit_offset"_a, "out"_a.noconvert(), Release());
    m.def("arrow_spans", &spans_of_arrow<int64_t>, "offsets"_a.noconvert(), "validity"_a.noconvert(), "bit_offset"_a, "out"_a.noconvert(), Release());
    m.def("blank_values", [](const Bytes& data, const WritableSpans& spans, const std::vector<std::string>& missing) {
        blank_values(chars(data), reinterpret_cast<Span*>(spans.data()), spans.shape(0), span_stride(spans), missing);
    }, "data"_a.noconvert(), "spans"_a.noconvert(), "missing"_a, Release());
}
