#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/comm/exercise_data.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"

namespace lockstep::test {

namespace {

constexpr std::int64_t many = std::int64_t{3} << 20;  // 12 MiB: more than any backend buffers for a receiver

class Messages {
public:
    Messages(ProcessGroup& group, Device device)
        : group_(group),
          device_(device),
          rank_(group.rank()),
          size_(group.size()),
          next_((rank_ + 1) % size_),
          previous_((rank_ + size_ - 1) % size_) {}

    std::vector<std::string> run() {
        const char* part = "";
        try {
            part = "blocking", blocking();
            part = "both directions", both_directions(true), both_directions(false);
            part = "before and after collectives", around_collectives();
            part = "from any source", from_anybody();
            part = "tags", tags();
            group_.barrier();
        } catch (const Error& error) {
            failures_.require(false, std::string(part) + ": " + error.what());
        }
        return failures_.lines();
    }

private:
    void check(const std::string& what, const Tensor& tensor, double value) {
        const std::vector<float> values = tensor.to_vector<float>();
        failures_.require(std::count(values.begin(), values.end(), static_cast<float>(value)) == tensor.numel(), what);
    }

    /// As in the tutorial; even ranks send first.
    void blocking() {
        for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1001}, many}) {
            const Tensor got = Tensor::zeros({count}), given = Tensor::full({count}, rank_ + 1);
            const int other = rank_ ^ 1;
            if (other >= size_) continue;
            if (rank_ % 2 == 0) group_.send(given, other);
            failures_.require(group_.recv(got, other) == other, "recv: wrong source");
            if (rank_ % 2 == 1) group_.send(given, other);
            check("send and recv", got, other + 1);
        }
    }

    void both_directions(bool send_first) {
        const Tensor got = Tensor::zeros({many}), given = Tensor::full({many}, rank_);
        std::vector<ProcessGroup::Work> works;
        if (send_first) works.push_back(group_.isend(given, next_));
        works.push_back(group_.irecv(got, previous_));
        if (!send_first) works.push_back(group_.isend(given, next_));
        for (const ProcessGroup::Work& work : works) work.wait();
        check("both directions", got, previous_);
        // Strided, on a device.
        const Tensor columns = Tensor::zeros({50, 4}, DType::f32, device_).slice(1, 1, 3);
        const ProcessGroup::Work work = group_.isend(Tensor::full({2, 50}, rank_ + 5).transpose(0, 1), next_, 8);
        group_.recv(columns, previous_, 8);
        work.wait();
        check("strided on a device", columns, previous_ + 5);
    }

    /// irecv, a collective, and only then the send: messages and collectives do not wait for each other.
    void around_collectives() {
        const Tensor got = Tensor::zeros({many}), given = Tensor::full({many}, rank_ + 3), sum = Tensor::full({5}, 1);
        const ProcessGroup::Work receive = group_.irecv(got, previous_);
        group_.all_reduce(sum);
        const ProcessGroup::Work later = group_.all_reduce_async(sum);
        const ProcessGroup::Work send = group_.isend(given, next_);
        receive.wait();
        send.wait();
        later.wait();
        check("all_reduce during messages", sum, size_ * size_);
        check("received after a collective", got, previous_ + 3);
        // The sender enters a collective before its message is received.
        if (rank_ == 0) {
            const ProcessGroup::Work started = group_.isend(given, 1, 4);
            group_.barrier();
            started.wait();
        } else if (rank_ == 1) {
            const Tensor early = Tensor::zeros({many});
            failures_.require(group_.recv(early, 0, 4) == 0, "recv: wrong source");
            check("received before the barrier", early, 3);
            group_.barrier();
        } else {
            group_.barrier();
        }
    }

    void from_anybody() {
        if (rank_ == 0) {
            std::vector<int> sources;
            for (int i = 1; i < size_; ++i) {
                const Tensor got = Tensor::zeros({7});
                const int source = i % 2 == 0 ? group_.recv(got) : group_.irecv(got).source();
                check("from any source", got, source);
                sources.push_back(source);
            }
            std::sort(sources.begin(), sources.end());
            for (int i = 1; i < size_; ++i)
                failures_.require(sources[static_cast<std::size_t>(i - 1)] == i, "from any source: one is missing");
        } else {
            group_.send(Tensor::full({7}, rank_), 0);
        }
        group_.barrier();
    }

    void tags() {
        std::vector<ProcessGroup::Work> works;
        std::vector<Tensor> got;
        for (int tag = 0; tag < 6; ++tag) works.push_back(group_.isend(Tensor::full({9}, tag), next_, tag * 1000));
        for (int tag = 5; tag >= 0; --tag) {
            got.push_back(Tensor::zeros({9}));
            works.push_back(group_.irecv(got.back(), previous_, tag * 1000));
        }
        for (const ProcessGroup::Work& work : works) work.wait();
        for (int i = 0; i < 6; ++i) check("tags", got[static_cast<std::size_t>(i)], 5 - i);
    }

    ProcessGroup& group_;
    Device device_;
    int rank_, size_, next_, previous_;
    Failures failures_;
};

}  // namespace

std::vector<std::string> exercise_group_messages(ProcessGroup& group, Device device) {
    return Messages(group, device).run();
}

}  // namespace lockstep::test
