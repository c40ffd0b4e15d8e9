#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_click_log(nb::module_&) {}
