#include "parallel.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace gearshift {
namespace {

struct Job {
    const std::function<void(uint32_t)>* piece;
    uint32_t next, count, threads, running = 0;
    std::exception_ptr failure;
};

class Crew {
public:
    void run(Job& job) {
        std::unique_lock held(lock_);
        hire(std::min(job.count, job.threads) - 1);
        jobs_.push_back(&job);
        work_.notify_all();
        while (take_piece(job, held)) {
        }
        done_.wait(held, [&] { return job.running == 0; });
        if (job.failure) std::rethrow_exception(job.failure);
    }

private:
    // Takes a piece of the job and runs it without the lock; false when none is left.
    bool take_piece(Job& job, std::unique_lock<std::mutex>& held) {
        if (job.next == job.count) return false;
        const uint32_t mine = job.next++;
        if (job.next == job.count) std::erase(jobs_, &job);
        ++job.running;
        held.unlock();
        std::exception_ptr failure;
        try {
            (*job.piece)(mine);
        } catch (...) {
            failure = std::current_exception();
        }
        held.lock();
        if (failure && !job.failure) job.failure = failure;
        if (--job.running == 0) done_.notify_all();
        return true;
    }

    // A job that may get another thread. Its caller runs pieces until none is left, so no piece waits forever.
    Job* open_job() const {
        const auto has_room = [](const Job* job) { return job->running < job->threads; };
        const auto found = std::find_if(jobs_.begin(), jobs_.end(), has_room);
        return found == jobs_.end() ? nullptr : *found;
    }

    void hire(uint32_t wanted) {
        const uint32_t most = std::max(1u, std::thread::hardware_concurrency()) - 1;
        try {
            for (; hired_ < std::min(wanted, most); ++hired_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {  // no thread available: the caller does the work
        }
    }

    void serve() {
        std::unique_lock held(lock_);
        for (;;) {
            Job* job = nullptr;
            work_.wait(held, [&] { return (job = open_job()) != nullptr; });
            take_piece(*job, held);
        }
    }

    std::mutex lock_;
    std::condition_variable work_, done_;
    std::deque<Job*> jobs_;
    uint32_t hired_ = 0;
};

// Never destroyed: its threads may outlive main().
Crew& crew() {
    static Crew* const one = new Crew;
    return *one;
}

}  // namespace

void run_pieces(uint32_t count, uint32_t threads, const std::function<void(uint32_t)>& piece) {
    if (count == 0) return;
    if (count == 1) return piece(0);
    Job job{&piece, 0, count, std::max(1u, threads), 0, nullptr};
    crew().run(job);
}

}  // namespace gearshift
