#include "lockstep/tests/parallel/comm/transport_exercise.h"

#include <chrono>
#include <numeric>
#include <thread>

#include "lockstep/tests/parallel/comm/exercise_data.h"

namespace lockstep::test {

namespace {

using Sizes = std::vector<std::size_t>;

class Exercise {
public:
    Exercise(Transport& transport, int rank, int size) : transport_(transport), rank_(rank), size_(size) {}

    std::vector<std::string> run() {
        const char* part = "";
        try {
            part = "barrier", barriers();
            part = "broadcast", broadcasts();
            part = "all_gather", all_gathers();
            part = "gather", gathers();
            part = "scatter", scatters();
            part = "all_to_all", all_to_alls();
            for (const DType dtype :
                 {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean})
                visit_dtype(dtype, [&](auto element) {
                    using T = decltype(element);
                    part = "all_reduce", all_reduces<T>();
                    part = "reduce", reduces<T>();
                    part = "reduce_scatter", reduce_scatters<T>();
                });
            part = "messages", exercise_messages(transport_, rank_, size_, failures_);
            transport_.barrier(soon());
        } catch (const TransportError& error) {
            failures_.require(false, std::string(part) + ": " + error.what());
        }
        transport_.meanwhile = nullptr;
        return failures_.lines();
    }

private:
    /// Sizes to try, and the roots for each of them.
    template <class Call>
    void sizes(Call call) {
        for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1003}, large}) call(bytes);
    }
    template <class Call>
    void sizes_and_roots(Call call) {
        sizes([&](std::size_t bytes) {
            for (int root = 0; root < size_; ++root)
                if (bytes < large || root == 0 || root == size_ - 1) call(bytes, root);
        });
    }
    /// Size of a rank's part if the parts are uneven: rank 1's is empty.
    static std::size_t uneven(std::size_t unit, int rank) {
        return rank == 1 ? 0 : unit * static_cast<std::size_t>(rank % 3 + 1) / 2;
    }
    template <class Call>
    void parts(std::size_t unit, Call call) {
        Sizes even(static_cast<std::size_t>(size_), unit), other;
        for (int r = 0; r < size_; ++r) other.push_back(uneven(unit, r));
        Sizes one(static_cast<std::size_t>(size_), 0);
        one.back() = unit;
        call(even);
        call(other);
        call(one);
    }
    static std::size_t total(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}); }
    static std::size_t before(const Sizes& sizes, int rank) {
        return std::accumulate(sizes.begin(), sizes.begin() + rank, std::size_t{0});
    }
    static void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }
    std::string name(const char* what, std::size_t bytes, int root = -1) const {
        return std::string(what) + " of " + std::to_string(bytes) +
               (root < 0 ? std::string() : ", root " + std::to_string(root));
    }

    /// No rank leaves a barrier before the last one has entered, by the host's clock.
    void barriers() {
        for (int i = 0; i < 100; ++i) transport_.barrier(soon());
        for (int late = 0; late < size_; ++late) {
            if (rank_ == late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            auto entered = Clock::now().time_since_epoch().count();
            transport_.barrier(soon());
            const auto left = Clock::now().time_since_epoch().count();
            transport_.broadcast(&entered, sizeof entered, late, soon());
            failures_.require(left >= entered,
                              "a barrier was released before rank " + std::to_string(late) + " had come");
        }
    }

    void broadcasts() {
        sizes_and_roots([&](std::size_t bytes, int root) {
            ++call_;
            const Bytes expected = sent_bytes(call_, root, 0, bytes);
            Target data = rank_ == root ? Target(expected) : Target(bytes);
            transport_.broadcast(data.data(), bytes, root, soon());
            failures_.check(name("broadcast", bytes, root), data, expected);
        });
    }

    Bytes gathered(const Sizes& bytes) const {
        Bytes all;
        for (int r = 0; r < size_; ++r) append(all, sent_bytes(call_, r, 0, bytes[static_cast<std::size_t>(r)]));
        return all;
    }

    void all_gathers() {
        sizes([&](std::size_t unit) {
            parts(unit, [&](const Sizes& bytes) {
                for (const bool in_place : {false, true}) {
                    ++call_;
                    const Bytes in = sent_bytes(call_, rank_, 0, bytes[static_cast<std::size_t>(rank_)]);
                    Target out(total(bytes));
                    const std::size_t own = before(bytes, rank_);
                    if (in_place) out.put(own, in);
                    transport_.all_gather(in_place ? out.data() + own : in.data(), out.data(), bytes, soon());
                    failures_.check(name(in_place ? "all_gather in place" : "all_gather", unit), out, gathered(bytes));
                }
            });
        });
    }

    void gathers() {
        sizes_and_roots([&](std::size_t unit, int root) {
            parts(unit, [&](const Sizes& bytes) {
                ++call_;
                const Bytes in = sent_bytes(call_, rank_, 0, bytes[static_cast<std::size_t>(rank_)]);
                Target out(rank_ == root ? total(bytes) : 0);
                transport_.gather(in.data(), rank_ == root ? out.data() : nullptr, bytes, root, soon());
                failures_.check(name("gather", unit, root), out, rank_ == root ? gathered(bytes) : Bytes());
            });
        });
    }

    void scatters() {
        sizes_and_roots([&](std::size_t unit, int root) {
            parts(unit, [&](const Sizes& bytes) {
                ++call_;
                Bytes in;
                if (rank_ == root)
                    for (int r = 0; r < size_; ++r)
                        append(in, sent_bytes(call_, root, r, bytes[static_cast<std::size_t>(r)]));
                Target out(bytes[static_cast<std::size_t>(rank_)]);
                transport_.scatter(rank_ == root ? in.data() : nullptr, out.data(), bytes, root, soon());
                failures_.check(name("scatter", unit, root), out,
                                sent_bytes(call_, root, rank_, bytes[static_cast<std::size_t>(rank_)]));
            });
        });
    }

    void all_to_alls() {
        sizes([&](std::size_t unit) {
            for (const bool even : {true, false}) {
                ++call_;
                const auto amount = [&](int from, int to) {
                    return even ? unit : uneven(unit, (from * 3 + to) % (size_ + 1));
                };
                Bytes in, expected;
                Sizes sent, received;
                for (int r = 0; r < size_; ++r) {
                    sent.push_back(amount(rank_, r));
                    received.push_back(amount(r, rank_));
                    append(in, sent_bytes(call_, rank_, r, sent.back()));
                    append(expected, sent_bytes(call_, r, rank_, received.back()));
                }
                Target out(expected.size());
                transport_.all_to_all(in.data(), sent, out.data(), received, soon());
                failures_.check(name(even ? "all_to_all" : "uneven all_to_all", unit), out, expected);
            }
        });
    }

    /// Every operation for every size, except that the large size is used only for sums.
    template <class T, class Call>
    void reductions(Call call) {
        for (const std::size_t bytes : {std::size_t{0}, sizeof(T), 1003 * sizeof(T), large / sizeof(T) * sizeof(T)})
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product})
                if (bytes < large / 2 || op == ReduceOp::sum)
                    call(bytes / sizeof(T), op, std::string(name_of(dtype_of<T>)) + " " + text_of(op));
    }

    template <class T>
    void all_reduces() {
        reductions<T>([&](std::size_t count, ReduceOp op, const std::string& what) {
            Target data(elements<T>(op, rank_, 0, count));
            transport_.all_reduce(data.data(), count, dtype_of<T>, op, soon());
            failures_.check("all_reduce: " + name(what.c_str(), count), data, reduced<T>(op, size_, 0, count));
        });
    }

    template <class T>
    void reduces() {
        reductions<T>([&](std::size_t count, ReduceOp op, const std::string& what) {
            for (int root = 0; root < size_; ++root) {
                if (count * sizeof(T) > large / 2 && root != 0 && root != size_ - 1) continue;
                const Bytes own = elements<T>(op, rank_, 0, count);
                Target data(own);
                transport_.reduce(data.data(), count, dtype_of<T>, op, root, soon());
                failures_.check("reduce: " + name(what.c_str(), count, root), data,
                                rank_ == root ? reduced<T>(op, size_, 0, count) : own);
            }
        });
    }

    template <class T>
    void reduce_scatters() {
        reductions<T>([&](std::size_t unit, ReduceOp op, const std::string& what) {
            parts(unit, [&](const Sizes& counts) {
                const Bytes in = elements<T>(op, rank_, 0, total(counts));
                const std::size_t own = counts[static_cast<std::size_t>(rank_)];
                Target out(own * sizeof(T));
                transport_.reduce_scatter(in.data(), out.data(), counts, dtype_of<T>, op, soon());
                failures_.check("reduce_scatter: " + name(what.c_str(), unit), out,
                                reduced<T>(op, size_, before(counts, rank_), own));
            });
        });
    }

    Transport& transport_;
    int rank_, size_;
    std::uint64_t call_ = 0;
    Failures failures_;
};

}  // namespace

std::vector<std::string> exercise_transport(Transport& transport, int rank, int size) {
    return Exercise(transport, rank, size).run();
}

}  // namespace lockstep::test
