#include "io_ring.h"

#if __has_include(<linux/io_uring.h>)

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace gearshift {
namespace {

int set_up(unsigned depth, io_uring_params& params) {
    return static_cast<int>(::syscall(__NR_io_uring_setup, depth, &params));
}

}  // namespace

std::unique_ptr<IoRing> IoRing::make(unsigned depth) {
    auto ring = std::unique_ptr<IoRing>(new IoRing);
    return ring->open(depth) ? std::move(ring) : nullptr;
}

IoRing::~IoRing() {
    if (entries_) ::munmap(entries_, entries_bytes_);
    if (rings_) ::munmap(rings_, rings_bytes_);
    if (descriptor_ >= 0) ::close(descriptor_);
}

bool IoRing::open(unsigned depth) {
    io_uring_params params{};
#ifdef IORING_SETUP_COOP_TASKRUN
    params.flags = IORING_SETUP_COOP_TASKRUN;  // completions do not interrupt the thread
    descriptor_ = set_up(depth, params);
    if (descriptor_ < 0) params = {};
#endif
    if (descriptor_ < 0) descriptor_ = set_up(depth, params);
    if (descriptor_ < 0 || !(params.features & IORING_FEAT_RW_CUR_POS)) return false;  // older kernels lack OP_READ
    rings_bytes_ = std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                                         params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    const auto map = [this](std::size_t bytes, off_t what) {
        void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, what);
        return at == MAP_FAILED ? nullptr : at;
    };
    rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
    entries_ = map(entries_bytes_, IORING_OFF_SQES);
    if (!rings_ || !entries_) return false;
    auto* base = static_cast<std::byte*>(rings_);
    const auto at = [base](unsigned offset) { return reinterpret_cast<unsigned*>(base + offset); };
    sq_tail_ = at(params.sq_off.tail), sq_array_ = at(params.sq_off.array), sq_mask_ = *at(params.sq_off.ring_mask);
    cq_head_ = at(params.cq_off.head), cq_tail_ = at(params.cq_off.tail), cq_mask_ = *at(params.cq_off.ring_mask);
    cqes_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
    return true;
}

// Pinned memory has a limit; without registration each read is only a little slower.
void IoRing::use_buffer(std::byte* bytes, std::size_t size) {
    if (registered_) ::syscall(__NR_io_uring_register, descriptor_, IORING_UNREGISTER_BUFFERS, nullptr, 0);
    const iovec buffer{bytes, size};
    registered_ = ::syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_BUFFERS, &buffer, 1) == 0;
}

void IoRing::prepare_read(int descriptor, uint64_t offset, std::span<std::byte> to, uint64_t tag) {
    const unsigned tail = *sq_tail_;
    io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[tail & sq_mask_];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = registered_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.fd = descriptor;
    entry.off = offset;
    entry.addr = reinterpret_cast<uint64_t>(to.data());
    entry.len = static_cast<unsigned>(to.size());
    entry.user_data = tag;
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++prepared_;
}

int IoRing::submit_and_wait(unsigned completions) {
    for (;;) {
        const long done = ::syscall(__NR_io_uring_enter, descriptor_, prepared_, completions, IORING_ENTER_GETEVENTS, nullptr, 0);
        if (done >= 0) {
            prepared_ -= static_cast<unsigned>(done);
            return 0;
        }
        if (errno != EINTR && errno != EAGAIN && errno != EBUSY) return errno;
    }
}

void IoRing::each_completion(const Done& done) {
    unsigned head = *cq_head_;
    const unsigned tail = std::atomic_ref(*cq_tail_).load(std::memory_order_acquire);
    for (; head != tail; ++head) {
        const io_uring_cqe entry = cqes_[head & cq_mask_];
        std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
        done(entry.user_data, entry.res);
    }
}

}  // namespace gearshift

#else

namespace gearshift {

std::unique_ptr<IoRing> IoRing::make(unsigned) { return nullptr; }
IoRing::~IoRing() = default;
void IoRing::use_buffer(std::byte*, std::size_t) {}
void IoRing::prepare_read(int, uint64_t, std::span<std::byte>, uint64_t) {}
int IoRing::submit_and_wait(unsigned) { return 0; }
void IoRing::each_completion(const Done&) {}

}  // namespace gearshift

#endif
