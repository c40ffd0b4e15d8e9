// Python bindings of row files for serving: writing weights at some precision, and looking them up.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "frozen_rows.h"
#include "frozen_writer.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gearshift;

namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

constexpr const char* kPrecisions[] = {"training", "float32", "bfloat16", "int8"};  // in the order of RowRecord

RowRecord precision_named(const std::string& name) {
    for (uint32_t i = 1; i < std::size(kPrecisions); ++i)
        if (name == kPrecisions[i]) return static_cast<RowRecord>(i);
    throw std::invalid_argument("no precision is called " + name);
}

template <class Floats>
void check_rows(std::size_t rows, std::size_t width, const Floats& weights) {
    if (weights.shape(0) != rows || weights.shape(1) != width)
        throw std::invalid_argument("weights must be " + std::to_string(rows) + " rows of width " + std::to_string(width));
}

}  // namespace

void bind_frozen(nb::module_& m) {
    nb::class_<FrozenWriter>(m, "FrozenWriter")
        .def("__init__", [](FrozenWriter* at, const std::string& path, const std::string& precision, std::vector<uint32_t> parts) {
            new (at) FrozenWriter(path, precision_named(precision), std::move(parts));
        }, "path"_a, "precision"_a, "parts"_a)
        .def("add", [](FrozenWriter& w, Column<const int64_t> ids, Matrix<const float> weights) {
            check_rows(ids.shape(0), w.width(), weights);
            w.add({ids.data(), ids.shape(0)}, weights.data());
        }, "ids"_a.noconvert(), "weights"_a.noconvert(), NoGil())
        .def("finish", &FrozenWriter::finish, NoGil())
        .def_prop_ro("rows", &FrozenWriter::rows)
        .def_prop_ro("largest_error", &FrozenWriter::largest_error);

    nb::class_<FrozenRows>(m, "FrozenRows")
        .def(nb::init<std::string, bool>(), "path"_a, "load"_a, NoGil())
        .def("__len__", &FrozenRows::size)
        .def_prop_ro("width", [](const FrozenRows& r) { return r.facts().shape.weights; })
        .def_prop_ro("parts", [](const FrozenRows& r) { return r.facts().shape.parts; })
        .def_prop_ro("precision", [](const FrozenRows& r) { return kPrecisions[static_cast<uint32_t>(r.facts().shape.record)]; })
        .def_prop_ro("file_bytes", [](const FrozenRows& r) { return r.facts().bytes; })
        .def("verify", &FrozenRows::verify, NoGil())
        .def("lookup", [](const FrozenRows& r, Column<const int64_t> ids, Matrix<float> out, Column<bool> found) {
            check_rows(ids.shape(0), r.facts().shape.weights, out);
            if (found.shape(0) != ids.shape(0)) throw std::invalid_argument("found must have a value for each id");
            r.lookup({ids.data(), ids.shape(0)}, out.data(), found.data());
        }, "ids"_a.noconvert(), "out"_a.noconvert(), "found"_a.noconvert(), NoGil());
}
