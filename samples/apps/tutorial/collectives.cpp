// Collective communication: every rank takes part.
#include <fmt/ranges.h>

#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/samples/apps/tutorial/programs.h"

namespace ls = lockstep;

namespace tutorial {

namespace {

/// "[0.0, 1.0]"
std::string text_of(const ls::Tensor& tensor) {
    return fmt::format("[{:.1f}]", fmt::join(tensor.to_vector<float>(), ", "));
}

void say_data(const ls::ProcessGroup& group, const ls::Tensor& tensor) {
    say("Rank {} has data {}", group.rank(), text_of(tensor));
}

/// `count` tensors of one element, for operations that need several.
std::vector<ls::Tensor> singles(int count, double value = 0, double step = 0) {
    std::vector<ls::Tensor> tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(ls::Tensor::full({1}, value + i * step));
    return tensors;
}

}  // namespace

void all_reduce(ls::ProcessGroup& group) {
    const ls::Tensor tensor = ls::Tensor::full({1}, 1);
    group.all_reduce(tensor);
    say("Rank {} has data {:.1f}", group.rank(), tensor.item());
}

void reduce(ls::ProcessGroup& group) {
    const ls::Tensor tensor = ls::Tensor::full({1}, group.rank());
    group.reduce(tensor, 0, ls::ReduceOp::max);
    if (group.rank() == 0) say("Rank 0 has the maximum {:.1f}", tensor.item());
}

void broadcast(ls::ProcessGroup& group) {
    const ls::Tensor tensor = ls::Tensor::full({2}, group.rank() + 1);
    group.broadcast(tensor, 0);
    say_data(group, tensor);
}

void scatter(ls::ProcessGroup& group) {
    const ls::Tensor tensor = ls::Tensor::zeros({1});
    group.scatter(tensor, singles(group.rank() == 0 ? group.size() : 0, 0, 1), 0);
    say_data(group, tensor);
}

void gather(ls::ProcessGroup& group) {
    const std::vector<ls::Tensor> all = singles(group.rank() == 0 ? group.size() : 0);
    group.gather(ls::Tensor::full({1}, group.rank()), all, 0);
    for (const ls::Tensor& tensor : all) say_data(group, tensor);
}

void all_gather(ls::ProcessGroup& group) {
    const ls::Tensor all = ls::Tensor::zeros({group.size()});
    group.all_gather(all, ls::Tensor::full({1}, group.rank()));
    say_data(group, all);
}

void reduce_scatter(ls::ProcessGroup& group) {
    const ls::Tensor sum = ls::Tensor::zeros({1});
    group.reduce_scatter(sum, ls::Tensor::arange(group.size()));
    say_data(group, sum);
}

void all_to_all(ls::ProcessGroup& group) {
    const ls::Tensor received = ls::Tensor::zeros({group.size()});
    group.all_to_all(received, ls::Tensor::arange(group.size()) + 10.0 * group.rank());
    say_data(group, received);
}

void barrier(ls::ProcessGroup& group) {
    group.barrier();
    say("Rank {} has passed the barrier", group.rank());
}

void ring(ls::ProcessGroup& group) {
    const int left = (group.rank() + group.size() - 1) % group.size(), right = (group.rank() + 1) % group.size();
    const ls::Tensor sum = ls::Tensor::full({2, 2}, group.rank() + 1);
    ls::Tensor given = sum.clone(), taken = sum.clone();
    for (int step = 1; step < group.size(); ++step) {  // each tensor is passed once around the ring
        const ls::ProcessGroup::Work request = group.isend(given, right);
        group.recv(taken, left);
        sum.copy_(sum + taken);
        request.wait();
        std::swap(given, taken);
    }
    say_data(group, sum);
}

}  // namespace tutorial
