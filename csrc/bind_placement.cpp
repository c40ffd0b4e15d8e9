// Python binding of the placement of rows on shards.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "placement.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_placement(nb::module_& m) {
    using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    using Places = nb::ndarray<uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    m.def("place", [](Ids ids, uint32_t shards, Places order, Places begins) {
        if (shards < 1 || shards > gearshift::kPartitions) throw std::invalid_argument("1 to 256 shards");
        if (order.shape(0) != ids.shape(0) || begins.shape(0) != shards + 1)
            throw std::invalid_argument("order needs a place for each id, begins one for each shard and one more");
        gearshift::place({ids.data(), ids.shape(0)}, shards, order.data(), begins.data());
    }, "ids"_a.noconvert(), "shards"_a, "order"_a.noconvert(), "begins"_a.noconvert(),
       nb::call_guard<nb::gil_scoped_release>());
}
