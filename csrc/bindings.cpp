// The Python module. Each part of the core registers its bindings; nothing is computed here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_frozen(nb::module_& m);
void bind_rows(nb::module_& m);       // bind_rows.cpp: row table, row optimizers, occurrences
void bind_placement(nb::module_& m);  // bind_placement.cpp: which shard holds a row
void bind_text(nb::module_& m);       // bind_text.cpp: feature hash, text to numbers
void bind_click_log(nb::module_& m);  // bind_click_log.cpp: the synthetic click log

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // a model that lives until the interpreter exits is not a leak
    bind_rows(m);
    bind_frozen(m);
    bind_placement(m);
    bind_text(m);
    bind_click_log(m);
}
