#include "text_times.h"

#include <charconv>
#include <cmath>

namespace gearshift {
namespace {

constexpr int64_t kDay = 86400;

// Days since 1970-01-01 in the proleptic Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    const int64_t era = (year >= 0 ? year : year - 399) / 400;
    const int64_t year_of_era = year - era * 400;
    const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

bool is_date(int64_t year, int64_t month, int64_t day) {
    constexpr int kDays[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12 || day < 1) return false;
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return day <= kDays[month - 1] + (leap && month == 2);
}

// Consumes exactly `digits` digits.
bool take(std::string_view& text, size_t digits, int64_t& out) {
    if (text.size() < digits) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + digits, out);
    if (error != std::errc() || end != text.data() + digits || out < 0) return false;
    text.remove_prefix(digits);
    return true;
}

// One or two digits.
bool take_short(std::string_view& text, int64_t& out) {
    const bool two = text.size() > 1 && text[1] >= '0' && text[1] <= '9';
    return take(text, two ? 2 : 1, out);
}

bool take(std::string_view& text, char a, char b) {
    if (text.empty() || (text.front() != a && text.front() != b)) return false;
    text.remove_prefix(1);
    return true;
}

void skip_fraction(std::string_view& text) {
    if (!take(text, '.', ',')) return;
    while (!text.empty() && text.front() >= '0' && text.front() <= '9') text.remove_prefix(1);
}

// "Z", "+02:00", "-0530", "+02" or nothing; returns the seconds to subtract.
bool take_zone(std::string_view& text, int64_t& offset) {
    offset = 0;
    if (text.empty() || take(text, 'Z', 'z')) return text.empty();
    if (text == " UTC" || text == "UTC") return text.remove_prefix(text.size()), true;
    const int64_t sign = text.front() == '-' ? -1 : 1;
    int64_t hours = 0, minutes = 0;
    if (!take(text, '+', '-') || !take(text, 2, hours)) return false;
    take(text, ':', ':');
    if (!text.empty() && !take(text, 2, minutes)) return false;
    offset = sign * (hours * 3600 + minutes * 60);
    return text.empty();
}

bool take_iso_date(std::string_view& text, int64_t& year, int64_t& month, int64_t& day) {
    return take(text, 4, year) && take(text, '-', '/') && take_short(text, month) && take(text, '-', '/') &&
           take_short(text, day);
}

// dd.mm.yyyy: with dots the order is unambiguous, unlike with slashes.
bool take_dotted_date(std::string_view& text, int64_t& year, int64_t& month, int64_t& day) {
    return take_short(text, day) && take(text, '.', '.') && take_short(text, month) && take(text, '.', '.') &&
           take(text, 4, year);
}

bool parse_calendar(std::string_view text, int64_t& seconds) {
    int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, offset = 0;
    const bool dotted = text.substr(0, 3).find('.') != std::string_view::npos;
    if (!(dotted ? take_dotted_date(text, year, month, day) : take_iso_date(text, year, month, day))) return false;
    if (!is_date(year, month, day)) return false;
    if (take(text, 'T', ' ')) {
        if (!take_short(text, hour)) return false;
        if (take(text, ':', ':') && !take(text, 2, minute)) return false;
        if (take(text, ':', ':') && !take(text, 2, second)) return false;
        skip_fraction(text);
    }
    if (!take_zone(text, offset) || hour > 24 || minute > 59 || second > 60) return false;
    seconds = days_from_civil(year, month, day) * kDay + hour * 3600 + minute * 60 + second - offset;
    return true;
}

int64_t floor_divide(int64_t number, int64_t by) { return number / by - (number % by < 0); }

}  // namespace

int64_t epoch_seconds(int64_t number) {
    const int64_t a = number / 1'000'000, b = number / 10'000 % 100, c = number / 100 % 100, d = number % 100;
    if (number >= 10'000'000 && number <= 99'999'999) {
        const int64_t year = 100 * a + b;
        if (year >= 1970 && year < 2100 && is_date(year, c, d)) return days_from_civil(year, c, d) * kDay;
        if (is_date(2000 + a, b, c) && d < 24) return days_from_civil(2000 + a, b, c) * kDay + d * 3600;
    }
    if (number >= 19'700'101'000'000 && number <= 20'991'231'235'959) {
        const int64_t year = a / 10'000, month = a / 100 % 100, day = a % 100;
        if (is_date(year, month, day) && b < 24 && c < 60 && d < 60)
            return days_from_civil(year, month, day) * kDay + b * 3600 + c * 60 + d;
    }
    const double size = std::abs(static_cast<double>(number));
    return floor_divide(number, size < 1e11 ? 1 : size < 1e14 ? 1'000 : size < 1e17 ? 1'000'000 : 1'000'000'000);
}

bool parse_time(std::string_view text, int64_t& seconds) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc()) {
        std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
        skip_fraction(rest);
        if (rest.empty()) return seconds = epoch_seconds(number), true;
    }
    return parse_calendar(text, seconds);
}

}  // namespace gearshift
