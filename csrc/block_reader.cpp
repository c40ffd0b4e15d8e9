#include "block_reader.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace gearshift {
namespace {

constexpr unsigned kDepth = 128;
constexpr unsigned kTogether = 16;  // completions that are waited for at once: fewer system calls, and the queue stays full
constexpr std::size_t kFallbackThreads = 32;
std::atomic<bool> io_uring_allowed{true};

int pread_all(const Extent& extent, std::byte* to) {
    std::size_t done = 0;
    while (done < extent.bytes) {
        const ssize_t got = ::pread(extent.descriptor, to + done, extent.bytes - done, static_cast<off_t>(extent.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return -1;
        done += static_cast<std::size_t>(got);
    }
    return 0;
}

}  // namespace

// The submission and completion queues that are shared with the kernel; see io_uring(7).
class IoRing {
public:
    static std::unique_ptr<IoRing> make() {
        auto ring = std::unique_ptr<IoRing>(new IoRing);
        return ring->open() ? std::move(ring) : nullptr;
    }
    ~IoRing() {
        if (entries_ != MAP_FAILED) ::munmap(entries_, entries_bytes_);
        if (rings_ != MAP_FAILED) ::munmap(rings_, rings_bytes_);
        if (descriptor_ >= 0) ::close(descriptor_);
    }

    void prepare_read(const Extent& extent, std::byte* to, uint64_t tag) {
        const unsigned tail = *sq_tail_;
        io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[tail & sq_mask_];
        std::memset(&entry, 0, sizeof entry);
        entry.opcode = IORING_OP_READ;
        entry.fd = extent.descriptor;
        entry.off = extent.offset;
        entry.addr = reinterpret_cast<uint64_t>(to);
        entry.len = extent.bytes;
        entry.user_data = tag;
        sq_array_[tail & sq_mask_] = tail & sq_mask_;
        std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
        ++prepared_;
    }

    // Submits what was prepared and waits for this many completions; 0 or an errno.
    int submit_and_wait(unsigned completions) {
        for (;;) {
            const long done = ::syscall(__NR_io_uring_enter, descriptor_, prepared_, completions, IORING_ENTER_GETEVENTS, nullptr, 0);
            if (done >= 0) {
                prepared_ -= static_cast<unsigned>(done);
                return 0;
            }
            if (errno != EINTR && errno != EAGAIN && errno != EBUSY) return errno;
        }
    }

    template <class Done>
    void each_completion(Done done) {
        unsigned head = *cq_head_;
        const unsigned tail = std::atomic_ref(*cq_tail_).load(std::memory_order_acquire);
        for (; head != tail; ++head) {
            const io_uring_cqe entry = cqes_[head & cq_mask_];
            std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
            done(entry.user_data, entry.res);
        }
    }

private:
    bool open() {
        io_uring_params params{};
        descriptor_ = static_cast<int>(::syscall(__NR_io_uring_setup, kDepth, &params));
        if (descriptor_ < 0 || !(params.features & IORING_FEAT_RW_CUR_POS)) return false;  // older kernels lack OP_READ
        rings_bytes_ = std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                                             params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
        const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
        rings_ = ::mmap(nullptr, rings_bytes_, protection, flags, descriptor_, IORING_OFF_SQ_RING);
        entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
        entries_ = ::mmap(nullptr, entries_bytes_, protection, flags, descriptor_, IORING_OFF_SQES);
        if (rings_ == MAP_FAILED || entries_ == MAP_FAILED) return false;
        auto* base = static_cast<std::byte*>(rings_);
        const auto at = [base](unsigned offset) { return reinterpret_cast<unsigned*>(base + offset); };
        sq_tail_ = at(params.sq_off.tail), sq_array_ = at(params.sq_off.array), sq_mask_ = *at(params.sq_off.ring_mask);
        cq_head_ = at(params.cq_off.head), cq_tail_ = at(params.cq_off.tail), cq_mask_ = *at(params.cq_off.ring_mask);
        cqes_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
        return true;
    }

    int descriptor_ = -1;
    void *rings_ = MAP_FAILED, *entries_ = MAP_FAILED;
    std::size_t rings_bytes_ = 0, entries_bytes_ = 0;
    unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
    unsigned sq_mask_ = 0, cq_mask_ = 0, prepared_ = 0;
    io_uring_cqe* cqes_ = nullptr;
};

BlockReader::BlockReader() : ring_(io_uring_allowed ? IoRing::make() : nullptr) {}
BlockReader::~BlockReader() = default;

void BlockReader::allow_io_uring(bool allowed) { io_uring_allowed = allowed; }

BlockReader& BlockReader::of_this_thread() {
    thread_local BlockReader reader;
    if (reader.ring_ && !io_uring_allowed) reader.ring_ = nullptr;
    return reader;
}

void BlockReader::make_slots(std::span<const Extent> extents, std::size_t most) {
    slot_bytes_ = 0;
    for (const Extent& extent : extents) slot_bytes_ = std::max<std::size_t>(slot_bytes_, extent.bytes);
    const std::size_t bytes = slot_bytes_ * std::min(extents.size(), most);
    if (slots_.size() < bytes) slots_ = AlignedBytes(bytes);
}

void BlockReader::read(std::span<const Extent> extents, const Arrived& arrived) {
    if (extents.empty()) return;
    if (ring_)
        read_with_ring(extents, arrived);
    else
        read_with_threads(extents, arrived);
}

// A slot is reused as soon as its extent was handed over, so the queue stays full.
void BlockReader::read_with_ring(std::span<const Extent> extents, const Arrived& arrived) {
    make_slots(extents, kDepth);
    std::vector<std::size_t> extent_of(std::min<std::size_t>(extents.size(), kDepth));
    std::vector<bool> handed_over(extents.size());
    std::size_t next = 0, pending = 0;
    const auto start = [&](std::size_t free_slot) {
        extent_of[free_slot] = next;
        ring_->prepare_read(extents[next++], slot(free_slot), free_slot);
        ++pending;
    };
    std::exception_ptr failure;  // the kernel writes into the slots until every read has completed
    while (next < extent_of.size()) start(next);
    while (pending) {
        if (ring_->submit_and_wait(next < extents.size() ? kTogether : static_cast<unsigned>(std::min<std::size_t>(pending, kTogether))) != 0) {
            give_up_ring();
            for (std::size_t i = 0; i < extents.size(); ++i)
                if (!handed_over[i]) arrived(i, slot(0), pread_all(extents[i], slot(0)));
            return;
        }
        ring_->each_completion([&](uint64_t done_slot, int result) {
            --pending;
            const std::size_t i = extent_of[done_slot];
            handed_over[i] = true;
            const bool whole = result >= 0 && static_cast<uint32_t>(result) == extents[i].bytes;
            const int error = whole ? 0 : pread_all(extents[i], slot(done_slot));
            try {
                if (!failure) arrived(i, slot(done_slot), error);
            } catch (...) {
                failure = std::current_exception();
            }
            if (!failure && next < extents.size()) start(done_slot);
        });
    }
    if (failure) std::rethrow_exception(failure);
}

// Reads that are in flight may still write into the slots, so these are abandoned.
void BlockReader::give_up_ring() {
    ring_ = nullptr;
    new AlignedBytes(std::move(slots_));
    slots_ = AlignedBytes(slot_bytes_);
}

void BlockReader::read_with_threads(std::span<const Extent> extents, const Arrived& arrived) {
    const std::size_t threads = std::min(extents.size(), kFallbackThreads);
    make_slots(extents, threads);
    std::atomic<std::size_t> next{0};
    std::mutex lock;
    std::exception_ptr failure;
    const auto work = [&](std::size_t own_slot) {
        for (std::size_t i; (i = next.fetch_add(1)) < extents.size();) {
            const int error = pread_all(extents[i], slot(own_slot));
            std::lock_guard held(lock);
            try {
                if (!failure) arrived(i, slot(own_slot), error);
            } catch (...) {
                failure = std::current_exception();
            }
        }
    };
    std::vector<std::thread> pool;
    try {
        for (std::size_t t = 1; t < threads; ++t) pool.emplace_back(work, t);
    } catch (const std::system_error&) {  // fewer threads only reduce the speed
    }
    work(0);
    for (std::thread& thread : pool) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace gearshift
