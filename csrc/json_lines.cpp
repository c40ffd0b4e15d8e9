#include "json_lines.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "json_reader.h"

namespace gearshift {
namespace {

// Walks through the members of one object, including inner objects, and calls the visitor:
//     bool enter(path)         before a value; returns whether its text is needed
//     void value(text)         for a single value; its escapes are resolved if the text is needed
//     void nested(text, kind)  for a list (its text) or an object (no text)
template <typename Visitor>
class ObjectWalk {
  public:
    ObjectWalk(char* begin, char* end, Visitor& visitor) : begin_(begin), reader_(begin, end), visitor_(visitor) {}

    // The position and reason if it is not an object; no reason if it is one.
    BadJson run() {
        reader_.skip_space();
        if (!reader_.is_at('{')) reader_.fail("expected a JSON object");
        else if (object(0) && !reader_.is_at_end()) reader_.fail("expected the end of the line behind the object");
        return {0, static_cast<uint32_t>(reader_.at - begin_), reader_.error};
    }

  private:
    bool object(int depth) {
        if (depth > kMaxDepth) return reader_.fail("nested too deeply");
        ++reader_.at;
        reader_.skip_space();
        if (reader_.is_at('}')) return ++reader_.at, true;
        const size_t before = path_.size();
        do {
            std::string_view key;
            if (!text_of_string(key, true) || !reader_.take(':', "expected a colon")) return false;
            if (depth) path_ += '.';
            path_ += key;
            reader_.skip_space();
            if (!member(depth)) return false;
            path_.resize(before);
        } while (reader_.next_member());
        return reader_.take('}', "expected a comma or }");
    }

    bool member(int depth) {
        const bool wanted = visitor_.enter(path_);
        std::string_view text;
        if (reader_.is_at('{')) {
            visitor_.nested(text, kObjects);
            return object(depth + 1);
        }
        if (reader_.is_at('[')) {
            const char* const begin = reader_.at;
            uint8_t nesting;
            if (!reader_.list(nesting, depth + 1)) return false;
            visitor_.nested({begin, static_cast<size_t>(reader_.at - begin)}, nesting);
            return true;
        }
        if (reader_.is_at('"') ? !text_of_string(text, wanted) : !reader_.literal(text)) return false;
        visitor_.value(text);
        return true;
    }

    bool text_of_string(std::string_view& text, bool wanted) {
        bool escaped;
        if (!reader_.string(text, escaped)) return false;
        if (!escaped || !wanted) return true;
        char* const begin = begin_ + (text.data() - begin_);
        text = {begin, static_cast<size_t>(unescape(text, begin) - begin)};
        return true;
    }

    char* begin_;
    JsonReader reader_;
    Visitor& visitor_;
    std::string path_;
};

// Writes the spans of the requested paths. Lines usually have the same keys in the same order, so the slot of the n-th
// value of the previous line is tried first.
class SpanVisitor {
  public:
    SpanVisitor(const char* data, const std::vector<std::string>& paths) : nesting(paths.size()), data_(data), width_(paths.size()), seen_(paths.size()) {
        for (size_t i = 0; i < paths.size(); ++i) slots_.emplace(paths[i], static_cast<int32_t>(i));
    }

    void start(Span* spans) {
        spans_ = spans;
        std::fill_n(spans, width_, Span{0, 0});
        std::fill(seen_.begin(), seen_.end(), uint8_t{kNoNesting});
        next_ = 0;
    }

    bool enter(const std::string& path) {
        slot_ = find(path);
        return slot_ >= 0;
    }

    void value(std::string_view text) { nested(text, kNoNesting); }

    void nested(std::string_view text, uint8_t kind) {
        if (slot_ < 0) return;
        ++next_;
        spans_[slot_] = text.empty() ? Span{0, 0} : Span{static_cast<uint32_t>(text.data() - data_), static_cast<uint32_t>(text.size())};
        seen_[static_cast<size_t>(slot_)] = kind;
    }

    void finish() {
        for (size_t i = 0; i < width_; ++i) nesting[i] |= seen_[i];
    }

    std::vector<uint8_t> nesting;  // kinds of values of each path, over all good lines

  private:
    struct Known { std::string path; int32_t slot; };

    int32_t find(const std::string& path) {
        if (next_ < order_.size() && order_[next_].path == path) return order_[next_].slot;
        const auto found = slots_.find(path);
        if (found == slots_.end()) return -1;
        if (next_ >= order_.size()) order_.resize(next_ + 1);
        order_[next_] = {path, found->second};
        return found->second;
    }

    const char* data_;
    size_t width_;
    std::unordered_map<std::string, int32_t> slots_;
    std::vector<Known> order_;
    std::vector<uint8_t> seen_;  // of this line
    Span* spans_ = nullptr;
    size_t next_ = 0;  // requested values of this line so far
    int32_t slot_ = -1;
};

struct PathVisitor {
    std::unordered_map<std::string, bool> known;  // path: whether it has non-null values
    std::vector<std::string> order, only_null;
    std::string path;

    bool enter(const std::string& of) { return path = of, false; }
    void value(std::string_view text) { add(text.data() != nullptr); }
    void nested(std::string_view, uint8_t kind) {
        if (kind != kObjects) add(true);
    }

    void add(bool has_value) {
        const auto [found, is_new] = known.try_emplace(path, false);
        if (is_new) only_null.push_back(path);
        if (!has_value || found->second) return;
        found->second = true;
        order.push_back(path);
    }
};

// Calls line(begin, end) for each line of a buffer that is not blank; returns (bytes, lines) up to the end of the last one.
// Stops when `line` returns false.
template <typename Line>
std::pair<size_t, size_t> for_each_line(char* data, size_t size, bool last, Line line) {
    size_t at = 0, number = 0;
    while (at < size) {
        char* const newline = static_cast<char*>(std::memchr(data + at, '\n', size - at));
        if (!newline && !last) break;
        char* const end = newline ? newline : data + size;
        const bool is_blank = std::all_of(data + at, end, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
        if (!is_blank && !line(data + at, end, number)) break;
        at = static_cast<size_t>(end - data) + (newline ? 1 : 0);
        ++number;
    }
    return {at, number};
}

}  // namespace

JsonResult split_json(char* data, size_t size, const std::vector<std::string>& paths, bool last, size_t max_records,
                      Span* spans, uint32_t* lines) {
    JsonResult result;
    SpanVisitor visitor(data, paths);
    std::tie(result.consumed, result.lines) = for_each_line(data, size, last, [&](char* begin, char* end, size_t number) {
        if (result.records == max_records) return false;
        visitor.start(spans + result.records * paths.size());
        BadJson problem = ObjectWalk<SpanVisitor>(begin, end, visitor).run();
        problem.line = static_cast<uint32_t>(number);
        if (problem.reason) {
            result.bad.push_back(problem);
            return true;
        }
        visitor.finish();
        lines[result.records++] = problem.line;
        return true;
    });
    result.nesting = std::move(visitor.nesting);
    return result;
}

std::vector<std::string> json_paths(char* data, size_t size) {
    PathVisitor visitor;
    for_each_line(data, size, true, [&](char* begin, char* end, size_t) {
        ObjectWalk<PathVisitor>(begin, end, visitor).run();
        return true;
    });
    std::vector<std::string> paths = visitor.order;
    for (const std::string& path : visitor.only_null) {
        if (visitor.known.at(path)) continue;
        const std::string inside = path + '.';  // null here, an object in other lines
        const bool is_object = std::any_of(visitor.order.begin(), visitor.order.end(), [&](const std::string& other) { return other.starts_with(inside); });
        if (!is_object) paths.push_back(path);
    }
    return paths;
}

bool json_items(std::string_view text, std::vector<std::string_view>& items, std::string& unescaped) {
    JsonReader reader(text.data(), text.data() + text.size());
    items.clear();
    unescaped.clear();
    unescaped.reserve(text.size());  // keeps views into it valid
    if (!reader.take('[', "")) return false;
    reader.skip_space();
    if (reader.is_at(']')) return ++reader.at, reader.is_at_end();
    do {
        reader.skip_space();
        std::string_view item;
        bool escaped = false;
        if (reader.is_at('[') || reader.is_at('{')) return false;
        if (reader.is_at('"') ? !reader.string(item, escaped) : !reader.literal(item)) return false;
        if (escaped) {
            const size_t before = unescaped.size();
            unescaped.resize(before + item.size());
            unescaped.resize(static_cast<size_t>(unescape(item, unescaped.data() + before) - unescaped.data()));
            item = std::string_view(unescaped).substr(before);
        }
        if (!item.empty()) items.push_back(item);
    } while (reader.next_member());
    return reader.take(']', "") && reader.is_at_end();
}

}  // namespace gearshift
