// Memory for rows and indexes: large mappings on huge pages (if the system has them), divided into 64-byte-aligned pieces.
// When an index outgrows its piece, it returns the piece; the smaller slabs of rows fill these holes. The first mappings
// are small and on ordinary pages, so a small table stays small. Thread-safe.
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
    void release_pages(std::byte* piece, std::size_t bytes);  // also returns its whole pages to the system
    std::size_t allocated() const;  // bytes in use

private:
    void map_more(std::size_t bytes);
    void add_hole(std::byte* base, std::size_t bytes);
    void remove_hole(std::byte* base, std::size_t bytes);

    mutable std::mutex lock_;
    std::map<std::byte*, std::size_t> holes_;                    // address -> bytes; neighbours are merged
    std::set<std::pair<std::size_t, std::byte*>> holes_by_size_;  // the same by size: best fit
    std::vector<std::pair<std::byte*, std::size_t>> mappings_;
    std::size_t mapped_ = 0, allocated_ = 0;
};

}  // namespace gearshift
