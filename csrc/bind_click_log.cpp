#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "click_log.h"

namespace nb = nanobind;
using namespace gearshift;

namespace {

template <typename T, size_t kDimensions>
using Array = nb::ndarray<T, nb::numpy, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> field_names() {
    std::vector<std::string> names;
    for (int field = 0; field < kFields; ++field) names.emplace_back(click_field_name(field));
    return names;
}

void fill(const ClickLog& log, int64_t first, bool raw, Array<float, 1> labels, Array<double, 1> truth, Array<float, 2> numeric,
          Array<int64_t, 2> ids, Array<int64_t, 1> times, std::optional<Array<int64_t, 1>> offsets,
          std::optional<Array<int64_t, 1>> history) {
    const size_t count = labels.shape(0);
    const bool fits = truth.shape(0) == count && times.shape(0) == count && numeric.shape(0) == count && ids.shape(0) == count &&
                      numeric.shape(1) == kNumerics && ids.shape(1) == kFields &&
                      (!offsets || (history && offsets->shape(0) == count + 1 && history->shape(0) == count * kHistory));
    if (!fits) throw nb::value_error("the columns of a click log differ in length");
    const ClickColumns out{labels.data(), truth.data(), numeric.data(), ids.data(), times.data(),
                           offsets ? offsets->data() : nullptr, history ? history->data() : nullptr};
    const nb::gil_scoped_release unlocked;
    log.fill(first, static_cast<int64_t>(count), raw ? ClickForm::raw : ClickForm::ready, out);
}

}  // namespace

void bind_click_log(nb::module_& m) {
    m.attr("CLICK_FIELDS") = nb::cast(field_names());
    m.attr("CLICK_NUMERICS") = kNumerics;
    m.attr("CLICK_HISTORY") = kHistory;
    nb::class_<ClickLog>(m, "ClickLog")
        .def(
            "__init__",
            [](ClickLog* self, uint64_t seed, int64_t examples, int64_t days, bool sequences, double drift, double click_rate) {
                const nb::gil_scoped_release unlocked;
                new (self) ClickLog({seed, examples, days, sequences, drift, click_rate});
            },
            nb::arg("seed"), nb::arg("examples"), nb::arg("days"), nb::arg("sequences"), nb::arg("drift"), nb::arg("click_rate"))
        .def("fill", &fill, nb::arg("first"), nb::arg("raw"), nb::arg("labels").noconvert(), nb::arg("truth").noconvert(),
             nb::arg("numeric").noconvert(), nb::arg("ids").noconvert(), nb::arg("times").noconvert(),
             nb::arg("offsets").noconvert().none(), nb::arg("history").noconvert().none());
}
