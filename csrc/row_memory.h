// Memory for rows and indexes: large mappings on huge pages (where the system has them), carved into 64-byte-aligned
// pieces. An index outgrows its piece and gives it back; rows' slabs, which are smaller, fill those holes. The first
// mappings are small and on ordinary pages, so that a small table stays small. Safe to call from several threads.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace gearshift {

class RowMemory {
public:
    RowMemory() = default;
    ~RowMemory();
    RowMemory(const RowMemory&) = delete;
    RowMemory& operator=(const RowMemory&) = delete;

    std::byte* allocate(std::size_t bytes);  // throws std::bad_alloc
    void release(std::byte* piece, std::size_t bytes);
    std::size_t allocated() const;  // bytes carved and not given back

private:
    void map_more(std::size_t bytes);
    void add_hole(std::byte* base, std::size_t bytes);
    void remove_hole(std::byte* base, std::size_t bytes);

    mutable std::mutex lock_;
    std::map<std::byte*, std::size_t> holes_;                    // address -> bytes, neighbours joined
    std::set<std::pair<std::size_t, std::byte*>> holes_by_size_;  // the same: the smallest that fits is taken
    std::vector<std::pair<std::byte*, std::size_t>> mappings_;
    std::size_t mapped_ = 0, allocated_ = 0;
};

}  // namespace gearshift
