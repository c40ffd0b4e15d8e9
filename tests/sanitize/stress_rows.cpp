// Threads pull, push, erase, load, cut, scan and save one table while it grows, with checks that need no order between them. Compiled
// by test_sanitizers.py with AddressSanitizer + UndefinedBehaviorSanitizer, and with ThreadSanitizer; prints "ok" at the end.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "frozen_rows.h"
#include "frozen_writer.h"
#include "occurrences.h"
#include "row_table.h"

using namespace gearshift;

namespace {

constexpr uint32_t kWidth = 17;

void require(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "broken: %s\n", what);
        std::exit(1);
    }
}

PartSpec part(OptimizerKind kind, uint32_t width) {
    PartSpec spec;
    spec.kind = kind;
    spec.width = width;
    spec.init = 0.01;
    spec.lr = 0.1;
    spec.eps = 1e-8;
    spec.beta = 1.0;
    spec.beta1 = 0.9;
    spec.beta2 = 0.999;
    return spec;
}

std::vector<int64_t> some_ids(std::mt19937_64& random, std::size_t count, uint64_t range) {
    std::vector<int64_t> ids(count);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % range);
    return ids;
}

// One trainer's calls, over a range of ids that widens so that the table grows.
void train(RowTable& table, uint32_t number, int calls, std::atomic<uint64_t>& touches) {
    std::mt19937_64 random(number);
    for (int call = 0; call < calls; ++call) {
        const auto ids = some_ids(random, 1 + random() % 5000, 500 + 400 * static_cast<uint64_t>(call));
        const Occurrences index(ids);
        const std::size_t unique = index.unique().size();
        std::vector<float> rows(unique * kWidth), grads(ids.size() * kWidth, 0.5f), sums(unique * kWidth);
        table.pull(index.unique(), nullptr, rows.data(), 1 + call % 3);
        for (float value : rows) require(std::isfinite(value), "a pulled weight is finite");
        std::vector<float> expanded(ids.size() * kWidth);
        index.expand(rows.data(), kWidth, 0, kWidth, expanded.data(), 2);
        index.sum(grads.data(), kWidth, 0, kWidth, sums.data(), 2);
        table.push(index.unique(), nullptr, sums.data(), index.counts().data(), 100.0, static_cast<uint32_t>(call), 1.0,
                   1 + call % 2);
        touches += ids.size();
        table.peek(index.unique(), rows.data(), 1);
    }
}

// Ids that come and go, outside the trainers' range.
void churn(RowTable& table, int calls) {
    std::mt19937_64 random(99);
    for (int call = 0; call < calls; ++call) {
        auto ids = some_ids(random, 2000, 20000);
        for (int64_t& id : ids) id += int64_t{1} << 40;
        std::vector<float> rows(ids.size() * kWidth);
        table.pull(ids, nullptr, rows.data(), 1);
        table.erase(std::span(ids).first(1500));
        table.memory_bytes();
    }
}

// Chunks of ids that others train, read ahead; now and then one is given up before it is loaded.
void look_ahead(RowTable& table, int chunks) {
    std::mt19937_64 random(7);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        table.begin_chunk();
        for (int batch = 0; batch < 4; ++batch) table.expect(some_ids(random, 1000, 500 + 400 * static_cast<uint64_t>(chunk)));
        for (int part = 0; (part < 5 || chunk % 4) && table.load_expected();) ++part;
        table.prefetch(some_ids(random, 500, 20000));
    }
}

void scan(RowTable& table, int cuts) {
    RowTable copy({part(OptimizerKind::adam, 1), part(OptimizerKind::adagrad, 16)}, 1, false);
    for (int c = 0; c < cuts; ++c) {
        table.begin_cut();
        std::size_t rows = 0;
        for (uint32_t p = 0; p < kPartitions; ++p) {
            const RowBlockData block = table.read_cut_partition(p);
            rows += block.ids.size();
            copy.load({block.ids, block.weights.data(), block.state.data(), block.touches.data(), block.last_step.data(),
                       block.updates.data(), block.tables.data()});
        }
        require(rows == table.cut_size(), "a cut has as many rows as it said");
        table.end_cut();
        table.read_partition(static_cast<uint32_t>(c) % kPartitions);
    }
}

uint64_t touches_in(RowTable& table) {
    uint64_t total = 0;
    for (uint32_t p = 0; p < kPartitions; ++p)
        for (uint32_t touches : table.read_partition(p).touches) total += touches;
    return total;
}

// The files under other names, for a tier that removes its own.
std::vector<std::string> linked(const std::vector<std::string>& files, const std::string& begin) {
    std::vector<std::string> links;
    for (const std::string& file : files) {
        links.push_back(begin + std::to_string(links.size()) + ".gsr");
        require(link(file.c_str(), links.back().c_str()) == 0, "a file can be linked");
    }
    return links;
}

// Cuts are written as files while others train, and loaded into tables in memory and on disk.
void save(RowTable& table, const std::string& folder, bool tiered, int cuts) {
    const std::string saved = folder + "-saved", again = folder + "-again";
    require(mkdir(saved.c_str(), 0700) == 0 && mkdir(again.c_str(), 0700) == 0, "folders can be made");
    const std::vector<PartSpec> parts{part(OptimizerKind::adam, 1), part(OptimizerKind::adagrad, 16)};
    for (int c = 0; c < cuts; ++c) {
        RowTable in_memory(parts, 1, false), on_disk(parts, 1, false, true);
        on_disk.add_cold_tier(again, std::size_t{8} << 20, 1024);
        table.begin_cut();
        const uint32_t step = tiered ? 1 : kColdGroups;  // a tier has files of each group
        for (uint32_t g = 0; g < kColdGroups; g += step) {
            const std::string path = saved + "/rows.gsr";
            const auto files = table.write_cut_groups(g, g + step, path);
            in_memory.load_files(files);
            if (tiered) on_disk.adopt_files(linked(files, again + "/saved-" + std::to_string(g) + "-"));
            unlink(path.c_str());  // there is none if all rows are in older files
        }
        require(in_memory.size() == table.cut_size(), "the files have the rows of the cut");
        table.end_cut();
        if (tiered) require(touches_in(on_disk) == touches_in(in_memory), "both have the same rows");
    }
    require(rmdir(saved.c_str()) == 0 && rmdir(again.c_str()) == 0, "nothing is left behind");
}

// Files of all precisions, mapped and loaded, looked up by several threads that verify blocks at the same time.
void serve(const std::string& folder) {
    constexpr int64_t kRows = 3000;
    const std::string path = folder + "/serving.gsr";
    for (const RowRecord precision : {RowRecord::float32, RowRecord::bfloat16, RowRecord::int8}) {
        FrozenWriter writer(path, precision, {16, 1});
        std::vector<int64_t> ids(kRows);
        std::vector<float> weights(kRows * kWidth);
        for (int64_t i = 0; i < kRows; ++i) {
            ids[i] = 2 * i;
            for (uint32_t c = 0; c < kWidth; ++c) weights[i * kWidth + c] = static_cast<float>(i % 100) / 128;
        }
        writer.add(ids, weights.data());
        writer.finish();
        for (const bool load : {false, true}) {
            const FrozenRows rows(path, load);
            const auto look = [&](uint32_t seed) {
                std::mt19937_64 random(seed);
                for (int call = 0; call < 20; ++call) {
                    const auto wanted = some_ids(random, 500, 2 * kRows + 100);
                    std::vector<float> out(wanted.size() * kWidth);
                    const std::unique_ptr<bool[]> found(new bool[wanted.size()]);
                    rows.lookup(wanted, out.data(), found.get());
                    for (std::size_t i = 0; i < wanted.size(); ++i) {
                        require(found[i] == (wanted[i] % 2 == 0 && wanted[i] < 2 * kRows), "an id is found if it has a row");
                        const float expected = found[i] ? static_cast<float>(wanted[i] / 2 % 100) / 128 : 0.0f;
                        require(std::abs(out[i * kWidth] - expected) < 0.01f, "a row has its weights");
                    }
                }
            };
            std::vector<std::thread> threads;
            for (uint32_t n = 0; n < 3; ++n) threads.emplace_back(look, n);
            for (std::thread& thread : threads) thread.join();
            rows.verify();
        }
    }
    require(unlink(path.c_str()) == 0, "the file can be removed");
}

// Threads push by rules of admission and expiry while horizons move and cuts are read.
void admit_and_end(const std::string& folder, bool portable, bool tiered, int calls) {
    RowTable table({part(OptimizerKind::adagrad, kWidth)}, 1, portable);
    table.set_rules({{}, {2, 1.0, true, 9, 1e9}, {0, 0.5, true, ~uint32_t{0}, 0.2}, {}});
    if (tiered) table.add_cold_tier(folder, std::size_t{16} << 20, 1024);
    std::atomic<uint32_t> step{1};  // as on a shard with replicas: pushes are for the step after it, marks for the one after that
    const auto push = [&](uint64_t number) {
        std::mt19937_64 random(number);
        for (int call = 0; call < calls; ++call) {
            const Occurrences index(some_ids(random, 1500, 4000 + 50 * static_cast<uint64_t>(call)));
            const std::size_t unique = index.unique().size();
            std::vector<float> rows(unique * kWidth), sums(unique * kWidth, 0.1f);
            std::vector<uint16_t> tables(unique);
            for (std::size_t u = 0; u < unique; ++u) tables[u] = static_cast<uint16_t>(index.unique()[u] % 4);
            table.pull(index.unique(), tables.data(), rows.data(), 2);
            table.push(index.unique(), tables.data(), sums.data(), index.counts().data(), 10.0, step + 1, 1.0, 2);
            table.rule_counts();
        }
    };
    const auto move = [&] {
        for (uint32_t at = 0; at < 60; ++at) {
            const uint32_t now = ++step, horizon = now > 6 ? now - 6 : 0;
            table.move_horizons(now + 2, std::vector<uint32_t>(4, horizon));
            std::this_thread::yield();
        }
    };
    std::vector<std::thread> threads;
    for (uint64_t n = 0; n < 2; ++n) threads.emplace_back([&, n] { push(n); });
    threads.emplace_back(move);
    for (int c = 0; c < 3; ++c) {
        table.begin_cut();
        std::size_t rows = 0;
        for (uint32_t p = 0; p < kPartitions; ++p) rows += table.read_cut_partition(p).rows();
        require(rows == table.cut_size(), "a cut has the rows that had not ended");
        table.end_cut();
    }
    for (std::thread& thread : threads) thread.join();
    std::size_t rows = 0;
    for (uint32_t p = 0; p < kPartitions; ++p) rows += table.read_partition(p).rows();
    require(rows == table.size(), "rows are counted without looking for them");
}

}  // namespace

int main(int argc, char** argv) {
    const int calls = argc > 1 ? std::atoi(argv[1]) : 60;
    for (bool portable : {false, true})
        for (bool tiered : {false, true}) {
            char folder[] = "/var/tmp/stress-rows-XXXXXX";
            require(mkdtemp(folder) != nullptr, "a folder can be made");
            serve(folder);
            admit_and_end(folder, portable, tiered, calls);
            {
                RowTable table({part(OptimizerKind::adam, 1), part(OptimizerKind::adagrad, 16)}, 1, portable);
                if (tiered) table.add_cold_tier(folder, std::size_t{8} << 20, 1024);
                std::atomic<uint64_t> touches{0};
                std::vector<std::thread> threads;
                for (uint32_t n = 0; n < 3; ++n) threads.emplace_back([&, n] { train(table, n, calls, touches); });
                threads.emplace_back([&] { churn(table, calls); });
                threads.emplace_back([&] { look_ahead(table, calls); });
                threads.emplace_back([&] {
                    scan(table, calls / 6);
                    save(table, folder, tiered, calls / 12);
                });
                for (std::thread& thread : threads) thread.join();
                require(touches_in(table) == touches, "no push was lost");
                if (tiered) table.settle_cold_tier();
                require(touches_in(table) == touches, "no push was lost by merging");
            }
            require(rmdir(folder) == 0, "the files of the cold tier are removed with the table");
        }
    std::puts("ok");
}
