#pragma once

#include <nanobind/nanobind.h>

#include "row_table.h"

// Adds the functions of admission and expiry to the class of the table.
void bind_rules(nanobind::module_& m, nanobind::class_<gearshift::RowTable>& table);
