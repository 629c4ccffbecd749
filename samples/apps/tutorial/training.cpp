// Distributed SGD by hand: each rank trains on its part of the data and averages the gradients with the others.
#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/mnist_nets.h"
#include "lockstep/samples/apps/tutorial/programs.h"
#include "lockstep/samples/data/data_partitioner.h"

namespace ls = lockstep;

namespace tutorial {

namespace {

constexpr std::int64_t global_batch = 128;

struct Batch {
    ls::Tensor images, labels;
};

Batch read(const samples::Partition<ls::Mnist>& data, std::span<const std::int64_t> rows) {
    const auto [image, label] = data.fields();
    ls::Shape shape = image.shape;
    shape.insert(0, static_cast<std::int64_t>(rows.size()));
    Batch batch{ls::Tensor::empty(shape), ls::Tensor::empty({static_cast<std::int64_t>(rows.size())}, ls::DType::i64)};
    const std::array<std::byte*, 2> to{reinterpret_cast<std::byte*>(batch.images.data<float>()),
                                       reinterpret_cast<std::byte*>(batch.labels.data<std::int64_t>())};
    data.read(rows, to);
    return batch;
}

template <class Net>
void average_gradients(ls::ProcessGroup& group, Net& net) {
    for (const ls::NamedTensor& parameter : ls::named_tensors(net)) {
        const ls::Tensor gradient = parameter.member->tensor().grad();
        group.all_reduce(gradient);
        gradient.copy_(gradient / group.size());
    }
}

}  // namespace

void train(ls::ProcessGroup& group, const Training& training) {
    using Net = mnist::Small;
    const ls::Mnist data(training.data, {.train = true, .mean = Net::mean, .stddev = Net::stddev});
    const std::vector<double> fractions(static_cast<std::size_t>(group.size()), 1.0 / group.size());
    const samples::Partition<ls::Mnist> part = samples::DataPartitioner(data.size(), fractions, training.seed)
                                                   .use(data, static_cast<std::size_t>(group.rank()));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(part.size()));
    std::iota(rows.begin(), rows.end(), 0);
    const auto batch_rows = static_cast<std::size_t>(std::max<std::int64_t>(global_batch / group.size(), 1));

    ls::manual_seed(training.seed);  // the same weights on all ranks,
    Net net;
    ls::manual_seed(training.seed + static_cast<std::uint64_t>(group.rank()) + 1);  // and different masks
    ls::SGD sgd(net, {.lr = 0.01, .momentum = 0.5});
    std::mt19937_64 order(training.seed);
    for (std::int64_t epoch = 0; epoch < training.epochs; ++epoch) {
        std::shuffle(rows.begin(), rows.end(), order);
        double loss_sum = 0;
        std::size_t batches = 0;
        for (std::size_t at = 0; at < rows.size(); at += batch_rows, ++batches) {
            const Batch batch = read(part, std::span(rows).subspan(at, std::min(batch_rows, rows.size() - at)));
            sgd.zero_grad();
            const ls::Tensor loss = ls::nll_loss(net.forward(batch.images), batch.labels);
            loss_sum += loss.item();
            loss.backward();
            average_gradients(group, net);
            sgd.step();
        }
        say("Rank {}, epoch {}: {:.4f}", group.rank(), epoch,
            loss_sum / static_cast<double>(std::max<std::size_t>(batches, 1)));
    }
}

}  // namespace tutorial
