// Python bindings of admission and expiry. The state of the rules passes as a dict of arrays, as checkpoints keep it.
#include "bind_rules.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>

namespace nb = nanobind;
using namespace nb::literals;
using namespace gearshift;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using RuleFacts = std::tuple<uint32_t, double, bool, uint32_t, double>;  // in the order of RowRule's members
constexpr std::size_t kCounts = sizeof(RuleCounts) / sizeof(uint64_t);

template <class T, class From>
nb::object to_numpy(const std::vector<From>& values, std::vector<std::size_t> shape) {
    static_assert(sizeof(From) % sizeof(T) == 0);
    const std::size_t size = values.size() * sizeof(From) / sizeof(T);
    auto* owned = new std::vector<T>(size);
    if (size) std::memcpy(owned->data(), values.data(), size * sizeof(T));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), shape.size(), shape.data(), owner));
}

template <class T, class To = T>
std::vector<To> from_numpy(const nb::dict& arrays, const char* name) {
    const auto array = nb::cast<Array<const T>>(arrays[name]);
    std::vector<To> values(array.size() * sizeof(T) / sizeof(To));
    if (!values.empty()) std::memcpy(values.data(), array.data(), values.size() * sizeof(To));
    return values;
}

std::vector<RowRule> rules_of(const std::vector<RuleFacts>& facts) {
    std::vector<RowRule> rules;
    for (const auto& [min_count, admit, expires, touches_below, norm_below] : facts)
        rules.push_back({min_count, admit, expires, touches_below, norm_below});
    return rules;
}

nb::dict to_dict(const RuleState& state) {
    const std::size_t partitions = state.partitions.size();
    nb::dict arrays;
    arrays["marks"] = to_numpy<uint32_t>(state.marks, {state.marks.size()});
    arrays["horizons"] = to_numpy<uint32_t>(state.horizons, {state.horizons.size()});
    arrays["partitions"] = to_numpy<uint32_t>(state.partitions, {partitions});
    arrays["counts"] = to_numpy<uint64_t>(state.counts, {partitions, state.horizons.size(), kCounts});
    arrays["counters"] = to_numpy<uint8_t>(state.counters, {state.counters.empty() ? 0 : partitions, CountSketch::kBytes});
    return arrays;
}

RuleState from_dict(const nb::dict& arrays) {
    return {from_numpy<uint32_t>(arrays, "marks"), from_numpy<uint32_t>(arrays, "horizons"),
            from_numpy<uint32_t>(arrays, "partitions"), from_numpy<uint64_t, RuleCounts>(arrays, "counts"),
            from_numpy<uint8_t>(arrays, "counters")};
}

}  // namespace

void bind_rules(nb::module_& m, nb::class_<RowTable>& table) {
    table.def("set_rules", [](RowTable& t, const std::vector<RuleFacts>& facts) { t.set_rules(rules_of(facts)); }, "rules"_a)
        .def("move_horizons", [](RowTable& t, uint32_t mark, const std::vector<uint32_t>& horizons) {
            t.move_horizons(mark, horizons);
        }, "mark"_a, "horizons"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("rule_counts", [](RowTable& t) {
            std::vector<RuleCounts> counts;
            {
                nb::gil_scoped_release released;
                counts = t.rule_counts();
            }
            return to_numpy<uint64_t>(counts, {counts.size(), kCounts});
        })
        .def("rows_by_table", &RowTable::rows_by_table, nb::call_guard<nb::gil_scoped_release>())
        .def("cut_rules", [](const RowTable& t) { return to_dict(t.cut_rules()); })
        .def("restore_rules", [](RowTable& t, const nb::dict& arrays) { t.restore_rules(from_dict(arrays)); },
             "state"_a);
    // Which of these rows, as a checkpoint has them, had ended when it was taken.
    m.def("ended_rows", [](const std::vector<RuleFacts>& facts, uint32_t width, const std::vector<uint32_t>& horizons,
                           Array<const float> weights, Array<const uint32_t> touches, Array<const uint32_t> last_step,
                           Array<const uint16_t> tables, Array<bool> out) {
        const std::vector<RowRule> rules = rules_of(facts);
        const std::size_t columns = weights.ndim() == 2 ? weights.shape(1) : 0;
        for (std::size_t i = 0; i < out.size(); ++i) {
            const uint16_t table = tables.data()[i] < rules.size() ? tables.data()[i] : 0;
            const RowMeta meta{touches.data()[i], last_step.data()[i], 0, table};
            out.data()[i] = rules[table].ends(meta, weights.data() + i * columns, width, horizons[table]);
        }
    }, "rules"_a, "width"_a, "horizons"_a, "weights"_a.noconvert(), "touches"_a.noconvert(), "last_step"_a.noconvert(),
          "tables"_a.noconvert(), "out"_a.noconvert());
}
