#include "block_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "io_ring.h"
#include "whole_read.h"

namespace gearshift {
namespace {

constexpr unsigned kDepth = 128;
constexpr std::size_t kTogether = 16;  // completions that are waited for at once: fewer system calls, and the queue stays full
constexpr std::size_t kFallbackThreads = 32;
std::atomic<bool> io_uring_allowed{true};
std::atomic<unsigned> setting{0};  // how often it was set

int pread_all(const Extent& extent, std::byte* to) {
    return read_whole(extent.descriptor, to, extent.bytes, extent.offset);
}

// The process's readers. They are never destroyed: a thread may still read while the process ends.
class Readers {
public:
    std::unique_ptr<BlockReader> take() {
        std::unique_lock held(lock_);
        returned_.wait(held, [this] { return !idle_.empty() || made_ < kMostReaders; });
        std::unique_ptr<BlockReader> reader;
        if (!idle_.empty()) reader = std::move(idle_.back()), idle_.pop_back();
        if (!reader) ++made_;
        held.unlock();
        if (reader && reader->made_under() == setting) return reader;
        try {
            return std::make_unique<BlockReader>();
        } catch (...) {
            held.lock();
            --made_;
            returned_.notify_one();
            throw;
        }
    }
    void give_back(std::unique_ptr<BlockReader> reader) {
        {
            std::lock_guard held(lock_);
            idle_.push_back(std::move(reader));
        }
        returned_.notify_one();
    }

private:
    std::mutex lock_;
    std::condition_variable returned_;
    std::vector<std::unique_ptr<BlockReader>> idle_;
    std::size_t made_ = 0;
};

Readers& readers() {
    static Readers& all = *new Readers;
    return all;
}

}  // namespace

BlockReader::BlockReader() : made_under_(setting), ring_(io_uring_allowed ? IoRing::make(kDepth) : nullptr) {}
BlockReader::~BlockReader() = default;

void BlockReader::allow_io_uring(bool allowed) {
    io_uring_allowed = allowed;
    ++setting;
}

QueueDepth read_extents(std::span<const Extent> extents, std::size_t most_bytes, const BlockReader::Arrived& arrived) {
    if (extents.empty()) return {};
    struct Borrowed {
        std::unique_ptr<BlockReader> reader = readers().take();
        ~Borrowed() { readers().give_back(std::move(reader)); }
    } borrowed;
    return borrowed.reader->read(extents, most_bytes, arrived);
}

void BlockReader::make_room(std::size_t bytes) {
    if (memory_.size() >= bytes) return;
    AlignedBytes larger(bytes);
    if (ring_) ring_->use_buffer(larger.data(), larger.size());
    memory_ = std::move(larger);
}

QueueDepth BlockReader::read(std::span<const Extent> extents, std::size_t most_bytes, const Arrived& arrived) {
    if (extents.empty()) return {};
    std::size_t largest = 0, all = 0;
    for (const Extent& extent : extents) largest = std::max<std::size_t>(largest, extent.bytes), all += extent.bytes;
    make_room(std::max(largest, std::min(all, most_bytes)));
    return ring_ ? read_with_ring(extents, arrived) : read_with_threads(extents, largest, arrived);
}

// Hands out memory for extents in a circle. It is free again in the same order, whatever the order in which they arrive.
class ReadsInFlight {
public:
    explicit ReadsInFlight(std::span<std::byte> memory) : memory_(memory) {}

    bool has_room(std::size_t bytes) const {
        return next_ - first_ < kWindow && pending_ < kDepth && begin_for(bytes) != kNoRoom;
    }
    std::span<std::byte> take(std::size_t extent, std::size_t bytes) {
        const std::size_t begin = begin_for(bytes);
        reads_[next_++ % kWindow] = {extent, begin, bytes, false};
        ++pending_;
        return memory_.subspan(begin, bytes);
    }
    uint64_t newest() const { return next_ - 1; }
    std::size_t extent(uint64_t number) const { return reads_[number % kWindow].extent; }
    std::byte* bytes(uint64_t number) const { return memory_.data() + reads_[number % kWindow].begin; }
    void release(uint64_t number) {
        reads_[number % kWindow].done = true;
        --pending_;
        while (first_ != next_ && reads_[first_ % kWindow].done) ++first_;
    }
    std::size_t pending() const { return pending_; }

private:
    static constexpr std::size_t kWindow = 2 * kDepth, kNoRoom = ~std::size_t{0};
    struct Read {
        std::size_t extent, begin, bytes;
        bool done;
    };
    std::size_t begin_for(std::size_t bytes) const {
        if (first_ == next_) return bytes <= memory_.size() ? 0 : kNoRoom;
        const std::size_t oldest = reads_[first_ % kWindow].begin;
        const Read& last = reads_[(next_ - 1) % kWindow];
        const std::size_t end = last.begin + last.bytes;
        if (last.begin < oldest) return end + bytes <= oldest ? end : kNoRoom;
        if (end + bytes <= memory_.size()) return end;
        return bytes <= oldest ? 0 : kNoRoom;
    }

    std::span<std::byte> memory_;
    std::array<Read, kWindow> reads_;
    uint64_t first_ = 0, next_ = 0;  // the oldest that holds memory; the next to start
    std::size_t pending_ = 0;
};

QueueDepth BlockReader::read_with_ring(std::span<const Extent> extents, const Arrived& arrived) {
    ReadsInFlight flight({memory_.data(), memory_.size()});
    std::vector<bool> handed_over(extents.size());
    std::size_t next = 0;
    QueueDepth depth;
    std::exception_ptr failure;  // the kernel writes into the memory until every read has completed
    const auto start_more = [&] {
        for (; !failure && next < extents.size() && flight.has_room(extents[next].bytes); ++next) {
            const std::span to = flight.take(next, extents[next].bytes);
            ring_->prepare_read(extents[next].descriptor, extents[next].offset, to, flight.newest());
        }
    };
    // Memory is used again as soon as its extent was handed over, so the queue stays full.
    for (start_more(); flight.pending(); start_more()) {
        ++depth.waits, depth.in_flight += flight.pending();
        const std::size_t awaited = std::clamp<std::size_t>(flight.pending() / 4, 1, kTogether);
        if (ring_->submit_and_wait(static_cast<unsigned>(awaited)) != 0) {
            give_up_ring();
            if (failure) std::rethrow_exception(failure);
            for (std::size_t i = 0; i < extents.size(); ++i)
                if (!handed_over[i]) arrived(i, memory_.data(), pread_all(extents[i], memory_.data()));
            return depth;
        }
        ring_->each_completion([&](uint64_t number, int result) {
            const std::size_t i = flight.extent(number);
            std::byte* bytes = flight.bytes(number);
            handed_over[i] = true;
            const bool whole = result >= 0 && static_cast<uint32_t>(result) == extents[i].bytes;
            const int error = whole ? 0 : pread_all(extents[i], bytes);
            try {
                if (!failure) arrived(i, bytes, error);
            } catch (...) {
                failure = std::current_exception();
            }
            flight.release(number);
        });
    }
    if (failure) std::rethrow_exception(failure);
    return depth;
}

// Reads that are in flight may still write into the memory, so it is abandoned.
void BlockReader::give_up_ring() {
    ring_ = nullptr;
    const std::size_t size = memory_.size();
    new AlignedBytes(std::move(memory_));
    memory_ = AlignedBytes(size);
}

QueueDepth BlockReader::read_with_threads(std::span<const Extent> extents, std::size_t slot_bytes, const Arrived& arrived) {
    const std::size_t threads = std::min({memory_.size() / slot_bytes, extents.size(), kFallbackThreads});
    std::atomic<std::size_t> next{0};
    std::mutex lock;
    std::exception_ptr failure;
    QueueDepth depth;
    const auto work = [&](std::size_t own_slot) {
        std::byte* bytes = memory_.data() + own_slot * slot_bytes;
        for (std::size_t i; (i = next.fetch_add(1)) < extents.size();) {
            const int error = pread_all(extents[i], bytes);
            std::lock_guard held(lock);
            ++depth.waits, depth.in_flight += std::min(threads, extents.size() - i);
            try {
                if (!failure) arrived(i, bytes, error);
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
    return depth;
}

}  // namespace gearshift
