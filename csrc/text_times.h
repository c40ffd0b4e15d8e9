// Converts the times in click logs to seconds since 1970 UTC. Text without a time zone is UTC.
#pragma once

#include <cstdint>
#include <string_view>

namespace gearshift {

// ISO 8601 date or date and time ('-' or '/' between the parts, leading zeros optional, 'T' or space before the time, 'Z'
// or an offset after it), the same with a dd.mm.yyyy date, or a number as in epoch_seconds. Fractions of a second are
// truncated. Returns false if it is not a time.
bool parse_time(std::string_view text, int64_t& seconds);

// 8 digits that form a date are yyyymmdd, or else yymmddHH (Avazu); 14 are yyyymmddHHMMSS. Other numbers count
// from 1970: seconds below 1e11, milliseconds below 1e14, microseconds below 1e17, nanoseconds above.
int64_t epoch_seconds(int64_t number);

}  // namespace gearshift
