// io_uring without a library: reads of one caller at a time, up to a fixed number in flight; see io_uring(7).
//
// The buffer is registered, so the kernel need not look up and pin its pages for each read. Where the system's headers
// lack io_uring, there is no ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

struct io_uring_cqe;

namespace gearshift {

class IoRing {
public:
    static std::unique_ptr<IoRing> make(unsigned depth);  // null where the kernel refuses it
    ~IoRing();
    IoRing(const IoRing&) = delete;
    IoRing& operator=(const IoRing&) = delete;

    // Reads go into these bytes from now on. They must stay valid until others are used.
    void use_buffer(std::byte* bytes, std::size_t size);
    void prepare_read(int descriptor, uint64_t offset, std::span<std::byte> to, uint64_t tag);
    // Submits what was prepared and waits for this many completions; 0 or an errno.
    int submit_and_wait(unsigned completions);

    using Done = std::function<void(uint64_t tag, int result)>;
    void each_completion(const Done& done);

private:
    IoRing() = default;
    bool open(unsigned depth);

    int descriptor_ = -1;
    void *rings_ = nullptr, *entries_ = nullptr;
    std::size_t rings_bytes_ = 0, entries_bytes_ = 0;
    unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
    unsigned sq_mask_ = 0, cq_mask_ = 0, prepared_ = 0;
    io_uring_cqe* cqes_ = nullptr;
    bool registered_ = false;
};

}  // namespace gearshift
