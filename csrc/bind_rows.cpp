// Python bindings of the row table and of the worker's occurrences. Shapes are checked here. Arrays are never converted
// (.noconvert()), because results written to a temporary copy would be lost. The GIL is released around all work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind_rules.h"
#include "block_reader.h"
#include "disk_probe.h"
#include "occurrences.h"
#include "row_scan.h"
#include "row_stack.h"
#include "row_table.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gearshift;

namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = Column<const int64_t>;
using Tables = Column<const uint16_t>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

std::span<const int64_t> span_of(const Ids& ids) { return {ids.data(), ids.shape(0)}; }

void must_be(const char* what, std::size_t got, std::size_t wanted) {
    if (got != wanted)
        throw std::invalid_argument(std::string(what) + " is " + std::to_string(got) + ", but must be " +
                                    std::to_string(wanted));
}

template <class Array>
void check_matrix(const char* name, const Array& array, std::size_t rows, std::size_t columns) {
    must_be((std::string("the number of rows of ") + name).c_str(), array.shape(0), rows);
    must_be((std::string("the number of columns of ") + name).c_str(), array.shape(1), columns);
}

const uint16_t* tables_of(const std::optional<Tables>& tables, const Ids& ids) {
    if (!tables) return nullptr;
    must_be("the length of tables", tables->shape(0), ids.shape(0));
    return tables->data();
}

void check_block(uint32_t width, uint32_t state_width, const Ids& ids, const Matrix<const float>& weights,
                 const Matrix<const float>& state, const Column<const uint32_t>& touches,
                 const Column<const uint32_t>& last_step, const Column<const uint32_t>& updates,
                 const Tables& tables) {
    const std::size_t rows = ids.shape(0);
    check_matrix("weights", weights, rows, width);
    check_matrix("state", state, rows, state_width);
    must_be("the length of touches", touches.shape(0), rows);
    must_be("the length of last_step", last_step.shape(0), rows);
    must_be("the length of updates", updates.shape(0), rows);
    must_be("the length of tables", tables.shape(0), rows);
}

OptimizerKind kind_named(const std::string& name) {
#define GEARSHIFT_KIND(kind, state) \
    if (name == #kind) return OptimizerKind::kind;
    GEARSHIFT_ROW_OPTIMIZERS(GEARSHIFT_KIND)
#undef GEARSHIFT_KIND
    throw std::invalid_argument("no row optimizer is called " + name);
}

double& number_named(PartSpec& spec, const std::string& name) {
#define GEARSHIFT_NUMBER(number) \
    if (name == #number) return spec.number;
    GEARSHIFT_ROW_NUMBERS(GEARSHIFT_NUMBER)
#undef GEARSHIFT_NUMBER
    throw std::invalid_argument("no row optimizer has a number called " + name);
}

PartSpec part_spec(const std::string& kind, uint32_t width, double init, const nb::kwargs& numbers) {
    PartSpec spec;
    spec.kind = kind_named(kind);
    spec.width = width;
    spec.init = init;
    for (const auto& [name, number] : numbers) number_named(spec, nb::cast<std::string>(name)) = nb::cast<double>(number);
    return spec;
}

// Passes a vector to numpy without a copy.
template <class T>
nb::object to_numpy(std::vector<T>&& values, std::vector<std::size_t> shape) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), shape.size(), shape.data(), owner));
}

nb::tuple to_tuple(RowBlockData&& block) {
    const std::size_t rows = block.rows(), width = block.width, state_width = block.state_width;
    return nb::make_tuple(to_numpy(std::move(block.ids), {rows}), to_numpy(std::move(block.weights), {rows, width}),
                          to_numpy(std::move(block.state), {rows, state_width}),
                          to_numpy(std::move(block.touches), {rows}), to_numpy(std::move(block.last_step), {rows}),
                          to_numpy(std::move(block.updates), {rows}), to_numpy(std::move(block.tables), {rows}));
}

template <class Read>
nb::tuple read_block(Read read) {
    std::optional<RowBlockData> block;
    {
        nb::gil_scoped_release released;
        block = read();
    }
    return to_tuple(std::move(*block));
}

nb::dict counts_by_name(const TierCounts& counts) {
    nb::dict named;
    named["hot_rows"] = counts.hot_rows, named["cold_rows"] = counts.cold_rows;
    named["lookups"] = counts.lookups, named["misses"] = counts.misses, named["prefetched"] = counts.prefetched, named["evicted"] = counts.evicted;
    named["written_back"] = counts.written_back, named["retries"] = counts.retries;
    const ColdCounts& disk = counts.disk;
    named["reads"] = disk.block_reads, named["bytes_read"] = disk.bytes_read, named["rows_read"] = disk.rows_found;
    named["needless_reads"] = disk.needless_reads, named["bytes_written"] = disk.bytes_written;
    named["bytes_flushed"] = disk.bytes_flushed, named["merges"] = disk.merges;
    named["stored_rows"] = disk.stored_rows, named["stale_rows"] = disk.stale_rows, named["files"] = disk.files;
    named["file_bytes"] = disk.file_bytes, named["index_bytes"] = disk.index_bytes;
    named["read_waits"] = disk.depth.waits, named["reads_in_flight"] = disk.depth.in_flight;
    return named;
}

// Reads blocks of 4 KiB and does nothing with them: what the disk gives.
void read_blocks(const std::string& path, Column<const uint64_t> offsets) {
    const RowFile file(path);
    std::vector<Extent> extents;
    for (std::size_t i = 0; i < offsets.shape(0); ++i)
        extents.push_back({file.descriptor(), offsets.data()[i] / kDiskBlock * kDiskBlock, kDiskBlock});
    read_extents(extents, kMostBytesInFlight, [&](std::size_t, const std::byte*, int error) {
        if (error) throw_read_error(file.path(), error);
    });
}

void bind_table(nb::module_& m) {
    nb::exception<RowFileError>(m, "RowFileError", nb::module_::import_("gearshift.errors").attr("UserError"));
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const RowIoError& error) {
            const nb::object facts = nb::make_tuple(error.code, std::strerror(error.code), error.path);
            PyErr_SetObject(PyExc_OSError, facts.ptr());
        }
    });
    m.def("allow_io_uring", &BlockReader::allow_io_uring, "allowed"_a);
    m.def("random_read_rate", [](const std::string& path, double seconds, uint32_t bytes) {
        return random_read_rate(path, seconds, bytes);
    }, "path"_a, "seconds"_a, "bytes"_a = 4096, NoGil());
    m.def("read_plan", [](double block_reads, double extent_reads, double longest_reads) {
        const ReadPlan plan = plan_from_rates(block_reads, extent_reads, longest_reads);
        return std::pair(plan.gap_bytes, plan.extent_bytes);
    }, "block_reads"_a, "extent_reads"_a, "longest_reads"_a);
    nb::class_<PartSpec>(m, "RowPartSpec")
        .def("__init__", [](PartSpec* at, const std::string& kind, uint32_t width, double init, const nb::kwargs& numbers) {
            new (at) PartSpec(part_spec(kind, width, init, numbers));
        }, nb::kw_only(), "kind"_a, "width"_a, "init"_a, "numbers"_a);

    nb::class_<RowTable> table(m, "RowTable");
    table.def(nb::init<const std::vector<PartSpec>&, uint64_t, bool, bool>(), "parts"_a, "seed"_a, "portable"_a = false,
             "little_memory"_a = false)
        .def_prop_ro("width", [](const RowTable& t) { return t.layout().width; })
        .def_prop_ro("state_width", [](const RowTable& t) { return t.layout().state_width; })
        .def("add_cold_tier", &RowTable::add_cold_tier, "folder"_a, "budget_bytes"_a, "hot_rows"_a,
             "tables"_a = 0, "shards"_a = 1, NoGil())
        .def("prefetch", [](RowTable& t, Ids ids) { t.prefetch(span_of(ids)); }, "ids"_a.noconvert(), NoGil())
        .def("begin_chunk", &RowTable::begin_chunk, NoGil())
        .def("expect", [](RowTable& t, Ids ids) { return t.expect(span_of(ids)); }, "ids"_a.noconvert(), NoGil())
        .def("load_expected", &RowTable::load_expected, NoGil())
        .def("close_cold_tier", &RowTable::close_cold_tier, NoGil())
        .def("cold_write_failure", &RowTable::cold_write_failure, NoGil())
        .def("check_cold_tier", &RowTable::check_cold_tier, NoGil())
        .def("settle_cold_tier", &RowTable::settle_cold_tier, NoGil())
        .def("tier_counts", [](const RowTable& t) {
            const TierCounts counts = [&] {
                const nb::gil_scoped_release released;  // it waits for locks of the disk tier
                return t.tier_counts();
            }();
            return counts_by_name(counts);
        })
        .def("lookups_by_table", [](const RowTable& t) {
            const std::vector<TableLookups> by_table = t.lookups_by_table();
            std::vector<uint64_t> counts;
            for (const auto& [lookups, misses, loads] : by_table) counts.insert(counts.end(), {lookups, misses, loads});
            return to_numpy(std::move(counts), {by_table.size(), 3});
        })
        .def("__len__", &RowTable::size, NoGil())
        .def("memory_bytes", &RowTable::memory_bytes, NoGil())
        .def("pull", [](RowTable& t, Ids ids, const std::optional<Tables>& tables, Matrix<float> out, uint32_t threads) {
            check_matrix("out", out, ids.shape(0), t.layout().width);
            t.pull(span_of(ids), tables_of(tables, ids), out.data(), threads);
        }, "ids"_a.noconvert(), "tables"_a.noconvert().none(), "out"_a.noconvert(), "threads"_a, NoGil())
        .def("peek", [](RowTable& t, Ids ids, Matrix<float> out, uint32_t threads) {
            check_matrix("out", out, ids.shape(0), t.layout().width);
            t.peek(span_of(ids), out.data(), threads);
        }, "ids"_a.noconvert(), "out"_a.noconvert(), "threads"_a, NoGil())
        .def("push", [](RowTable& t, Ids ids, const std::optional<Tables>& tables, Matrix<const float> sums,
                        Column<const uint32_t> counts, double examples, uint32_t step, double lr_scale, uint32_t threads) {
            check_matrix("sums", sums, ids.shape(0), t.layout().width);
            must_be("the length of counts", counts.shape(0), ids.shape(0));
            t.push(span_of(ids), tables_of(tables, ids), sums.data(), counts.data(), examples, step, lr_scale, threads);
        }, "ids"_a.noconvert(), "tables"_a.noconvert().none(), "sums"_a.noconvert(), "counts"_a.noconvert(), "examples"_a, "step"_a, "lr_scale"_a,
             "threads"_a, NoGil())
        .def("contains", [](RowTable& t, Ids ids, Column<bool> out) {
            must_be("the length of out", out.shape(0), ids.shape(0));
            t.contains(span_of(ids), out.data());
        }, "ids"_a.noconvert(), "out"_a.noconvert(), NoGil())
        .def("last_steps", [](RowTable& t, Ids ids, Column<uint32_t> out) {
            must_be("the length of out", out.shape(0), ids.shape(0));
            t.last_steps(span_of(ids), out.data());
        }, "ids"_a.noconvert(), "out"_a.noconvert(), NoGil())
        .def("erase", [](RowTable& t, Ids ids) { return t.erase(span_of(ids)); }, "ids"_a.noconvert(), NoGil())
        .def("load", [](RowTable& t, Ids ids, Matrix<const float> weights, Matrix<const float> state,
                        Column<const uint32_t> touches, Column<const uint32_t> last_step, Column<const uint32_t> updates,
                        Tables tables) {
            check_block(t.layout().width, t.layout().state_width, ids, weights, state, touches, last_step, updates, tables);
            t.load({span_of(ids), weights.data(), state.data(), touches.data(), last_step.data(), updates.data(), tables.data()});
        }, "ids"_a.noconvert(), "weights"_a.noconvert(), "state"_a.noconvert(), "touches"_a.noconvert(),
             "last_step"_a.noconvert(), "updates"_a.noconvert(), "tables"_a.noconvert(), NoGil())
        .def("read_partition", [](RowTable& t, uint32_t p) {
            return read_block([&] { return t.read_partition(p); });
        }, "partition"_a)
        .def("begin_cut", &RowTable::begin_cut, NoGil())
        .def("cut_size", &RowTable::cut_size)
        .def("read_cut_partition", [](RowTable& t, uint32_t p) {
            return read_block([&] { return t.read_cut_partition(p); });
        }, "partition"_a)
        .def("write_cut_groups", &RowTable::write_cut_groups, "first"_a, "last"_a, "path"_a, NoGil())
        .def("adopt_files", &RowTable::adopt_files, "paths"_a, NoGil())
        .def("load_files", &RowTable::load_files, "paths"_a, NoGil())
        .def_prop_ro("layout_hash", &RowTable::layout_hash)
        .def("write_new_rows", [](const RowTable& t, const std::string& path, Ids ids, Column<const uint32_t> touches) {
            must_be("the length of touches", touches.shape(0), ids.shape(0));
            t.write_new_rows(path, span_of(ids), touches.data());
        }, "path"_a, "ids"_a.noconvert(), "touches"_a.noconvert(), NoGil())
        .def("end_cut", &RowTable::end_cut, NoGil());
    bind_rules(m, table);

    nb::class_<RowStack>(m, "RowStack")
        .def(nb::init<const std::vector<std::string>&>(), "paths"_a, NoGil())
        .def_prop_ro("partitions", [](const RowStack& s) { return std::pair(s.begin_partition(), s.end_partition()); })
        .def_prop_ro("layout_hash", &RowStack::layout_hash)
        .def_prop_ro("width", &RowStack::width)
        .def_prop_ro("state_width", &RowStack::state_width)
        .def_prop_ro("records", &RowStack::records)
        .def("read_partition", [](const RowStack& s, uint32_t p) {
            return read_block([&] { return s.read_partition(p); });
        }, "partition"_a)
        .def("read_changes", [](const RowStack& s, uint32_t p) {
            std::vector<int64_t> erased;
            nb::tuple rows = read_block([&] { return s.read_changes(p, erased); });
            const std::size_t count = erased.size();
            return nb::make_tuple(rows, to_numpy(std::move(erased), {count}));
        }, "partition"_a);
    nb::class_<RowFileWriter>(m, "RowFileWriter")
        .def("__init__", [](RowFileWriter* at, const std::string& path, uint32_t width, uint32_t state_width, uint64_t layout_hash) {
            new (at) RowFileWriter(path, {width, state_width, layout_hash}, kRowsUnknown, /*cached=*/true);
        }, "path"_a, "width"_a, "state_width"_a, "layout_hash"_a)
        .def_prop_ro("rows", &RowFileWriter::rows)
        .def("add", [](RowFileWriter& w, Ids ids, Matrix<const float> weights, Matrix<const float> state,
                       Column<const uint32_t> touches, Column<const uint32_t> last_step, Column<const uint32_t> updates,
                       Tables tables, Ids erased) {
            check_block(w.shape().weights, w.shape().states, ids, weights, state, touches, last_step, updates, tables);
            const RowBlockView rows{span_of(ids), weights.data(), state.data(), touches.data(), last_step.data(), updates.data(),
                                    tables.data()};
            add_rows(w, rows, span_of(erased));
        }, "ids"_a.noconvert(), "weights"_a.noconvert(), "state"_a.noconvert(), "touches"_a.noconvert(),
             "last_step"_a.noconvert(), "updates"_a.noconvert(), "tables"_a.noconvert(), "erased"_a.noconvert(), NoGil())
        .def("finish", [](RowFileWriter& w) { w.finish(); }, NoGil());
    m.def("read_blocks", &read_blocks, "path"_a, "offsets"_a.noconvert(), NoGil());
    m.def("row_file_checksum", [](const std::string& path) { return RowFile(path).checksum(); }, "path"_a, NoGil());
}

void bind_occurrences(nb::module_& m) {
    const auto columns_of = [](const auto& wide, uint32_t begin, uint32_t end) {
        if (begin >= end || end > wide.shape(1))
            throw std::invalid_argument("columns [" + std::to_string(begin) + ", " + std::to_string(end) +
                                        ") are not inside a row of " + std::to_string(wide.shape(1)));
        return end - begin;
    };
    nb::class_<Occurrences>(m, "Occurrences")
        .def("__init__", [](Occurrences* at, Ids ids) {
            nb::gil_scoped_release released;
            new (at) Occurrences(span_of(ids));
        }, "ids"_a.noconvert())
        .def("__len__", &Occurrences::size)
        .def_prop_ro("unique_U", [](const Occurrences& o) {
            return nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>>(o.unique().data(), {o.unique().size()}, nb::find(o));
        })
        .def_prop_ro("counts_U", [](const Occurrences& o) {
            return nb::ndarray<nb::numpy, const uint32_t, nb::ndim<1>>(o.counts().data(), {o.counts().size()}, nb::find(o));
        })
        .def_prop_ro("first_U", [](const Occurrences& o) {
            return nb::ndarray<nb::numpy, const uint32_t, nb::ndim<1>>(o.first().data(), {o.first().size()}, nb::find(o));
        })
        .def("expand", [columns_of](const Occurrences& o, Matrix<const float> rows, uint32_t begin, uint32_t end,
                                    Matrix<float> out, uint32_t threads) {
            const uint32_t columns = columns_of(rows, begin, end);
            must_be("the number of rows of rows", rows.shape(0), o.unique().size());
            check_matrix("out", out, o.size(), columns);
            o.expand(rows.data(), rows.shape(1), begin, columns, out.data(), threads);
        }, "rows"_a.noconvert(), "begin"_a, "end"_a, "out"_a.noconvert(), "threads"_a = 1, NoGil())
        .def("sum", [columns_of](const Occurrences& o, Matrix<const float> grads, uint32_t begin, uint32_t end,
                                 Matrix<float> out, uint32_t threads) {
            const uint32_t columns = columns_of(out, begin, end);
            must_be("the number of rows of out", out.shape(0), o.unique().size());
            check_matrix("grads", grads, o.size(), columns);
            return o.sum(grads.data(), out.shape(1), begin, columns, out.data(), threads);
        }, "grads"_a.noconvert(), "begin"_a, "end"_a, "out"_a.noconvert(), "threads"_a = 1, NoGil());
}

}  // namespace

void bind_rows(nb::module_& m) {
    bind_table(m);
    bind_occurrences(m);
}
