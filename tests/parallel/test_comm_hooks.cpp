// Communication hooks: their arguments, the use of their results, and PowerSGD compared with sums in double.
#include <cmath>
#include <numeric>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Net = Mlp<6, 5, 3>;

/// Rows of a rank.
struct Rows {
    Tensor x, y;
    explicit Rows(int rank) {
        manual_seed(static_cast<std::uint64_t>(50 + rank));
        x = Tensor::randn({6, 6});
        y = Tensor::randn({6, 3});
    }
};

using Values = std::vector<float>;

/// By name.
std::map<std::string, Values> gradients_of(Net& net) {
    std::map<std::string, Values> result;
    for (const NamedTensor& named : named_tensors(net))
        result[named.name] = named.member->tensor().grad().to_vector<float>();
    return result;
}

/// Gradients of one rank's rows on one plain module.
std::map<std::string, Values> own_gradients(int rank) {
    Net net = seeded_mlp();
    const Rows rows(rank);
    squared_error(net.forward(rows.x), rows.y).backward();
    return gradients_of(net);
}

void expect_close(const Values& found, const Values& wanted, double tolerance, const std::string& what) {
    expect(found.size() == wanted.size(), what + ": different size");
    for (std::size_t i = 0; i < wanted.size(); ++i)
        expect(std::abs(found[i] - wanted[i]) <= tolerance * (1 + std::abs(wanted[i])),
               fmt::format("{}: element {} is {}, not {}", what, i, found[i], wanted[i]));
}

/// Forward and backward of this rank's rows under `hook`; returns the gradients, which every rank then has.
std::map<std::string, Values> hooked(ProcessGroup& group, CommunicationHook hook,
                                     const DistributedDataParallelOptions& options = {}) {
    DistributedDataParallel model(seeded_mlp(), group, options);
    model.register_comm_hook(group, std::move(hook));
    const Rows rows(group.rank());
    squared_error(model.forward(rows.x), rows.y).backward();
    model.synchronize();
    return gradients_of(model.module());
}

/// A bucket with one matrix (rows, columns) and a vector of 3 after it.
GradientBucket bucket_of(const Values& values, std::int64_t rows, std::int64_t columns) {
    const auto size = rows * columns;
    return {0,
            true,
            Tensor::from(values, Shape{size + 3}),
            {{"matrix", true, {rows, columns}, 0, size}, {"vector", true, {3}, size, size + 3}}};
}

/// Entries of a rank's matrix, row-major, and the vector (rank, rank + 1, rank + 2).
Values entries(int rank, std::int64_t rows, std::int64_t columns, double (*entry)(int, std::int64_t, std::int64_t)) {
    Values values;
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) values.push_back(static_cast<float>(entry(rank, r, c)));
    for (int i = 0; i < 3; ++i) values.push_back(static_cast<float>(rank + i));
    return values;
}

double full_rank(int rank, std::int64_t r, std::int64_t c) {
    return std::sin(static_cast<double>(1 + rank) + 1.7 * static_cast<double>(r * 31 + c * c)) +
           3 * std::cos(static_cast<double>(r)) * std::sin(0.5 + static_cast<double>(c));
}

/// The best approximation of rank 1 of a matrix in double, by many steps of power iteration.
std::vector<double> best_of_rank_1(const std::vector<double>& matrix, std::size_t rows, std::size_t columns) {
    std::vector<double> right(columns, 1), left(rows);
    for (int i = 0; i < 2000; ++i) {
        for (std::size_t r = 0; r < rows; ++r)
            left[r] =
                std::inner_product(right.begin(), right.end(), matrix.begin() + static_cast<long>(r * columns), 0.0);
        double squares = 0;
        for (const double value : left) squares += value * value;
        for (double& value : left) value /= std::sqrt(squares);
        for (std::size_t c = 0; c < columns; ++c) {
            right[c] = 0;
            for (std::size_t r = 0; r < rows; ++r) right[c] += left[r] * matrix[r * columns + c];
        }
    }
    std::vector<double> result(rows * columns);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) result[r * columns + c] = left[r] * right[c];
    return result;
}

}  // namespace

TEST_CASE("a hook gets the rank's local sum, and the mean of the hooks' results is the gradient") {
    for (const std::size_t bucket_bytes : {0, 64}) {
        CHECK(on_ranks(3, [&](ProcessGroup& group) {
                  const auto own = own_gradients(group.rank());
                  std::map<std::string, Values> given;
                  int next = 0, last = 0;
                  const auto found =
                      hooked(group,
                             [&](const GradientBucket& bucket, ProcessGroup& ranks) {
                                 expect(bucket.index() == next++, "the buckets are in another order");
                                 expect(last == 0, "a bucket follows the last one");
                                 if (bucket.is_last()) ++last;
                                 const auto views = bucket.gradients();
                                 for (std::size_t i = 0; i < views.size(); ++i) {
                                     const auto& part = bucket.parts()[i];
                                     Values& all = given[part.name];
                                     const auto piece = views[i].to_vector<float>();
                                     all.insert(all.end(), piece.begin(), piece.end());
                                     expect(!part.whole || views[i].dims() == (part.name.ends_with("bias") ? 1 : 2),
                                            "the shapes of a view and its parameter differ");
                                 }
                                 return all_reduce_hook()(bucket, ranks);
                             },
                             {.bucket_bytes = bucket_bytes});
                  expect(last == 1 && (bucket_bytes == 0 || next > 2), "buckets are missing");
                  for (const auto& [name, values] : own) {
                      expect_close(given[name], values, 1e-6, "given: " + name);
                      Values mean(values.size(), 0);
                      for (int rank = 0; rank < 3; ++rank) {
                          const Values of_rank = own_gradients(rank)[name];
                          for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += of_rank[i] / 3;
                      }
                      expect_close(found.at(name), mean, 1e-5, "returned: " + name);
                  }
              }) == "");
    }
}

TEST_CASE("with 16-bit hooks, gradients are close to the mean and have 16-bit precision") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              for (const DType dtype : {DType::f16, DType::bf16}) {
                  const auto hook = dtype == DType::f16 ? fp16_compress_hook() : bf16_compress_hook();
                  const auto a = own_gradients(0), b = own_gradients(1);
                  for (const auto& [name, values] : hooked(group, hook)) {
                      const Tensor found = Tensor::from(values, Shape{static_cast<std::int64_t>(values.size())});
                      expect(found.to(dtype).to(DType::f32).to_vector<float>() == values, name + " has more precision");
                      Values mean;
                      for (std::size_t i = 0; i < values.size(); ++i)
                          mean.push_back((a.at(name)[i] + b.at(name)[i]) / 2);
                      expect_close(values, mean, dtype == DType::f16 ? 2e-3 : 2e-2, name);
                  }
              }
          }) == "");
}

TEST_CASE("steps with a hook train as without one, identically on every rank") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Rows rows(7);
              const auto train = [&](bool with_hook) {
                  DistributedDataParallel model(seeded_mlp(), group, {.bucket_bytes = 64});
                  if (with_hook) model.register_comm_hook(group, all_reduce_hook());
                  SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
                  for (int i = 0; i < 4; ++i) (void)model.step(sgd, rows.x, rows.y, mse_loss).item();
                  model.engine().verify_replicas();
                  return model->first.weight.tensor().to_vector<float>();
              };
              expect_close(train(true), train(false), 1e-6, "weights");
          }) == "");
}

TEST_CASE("hooks that fail or return a mismatched tensor end training on all ranks with an error that names them") {
    const auto fails = [](const std::string& part, const CommunicationHook& hook) {
        CHECK(on_ranks(2, [&](ProcessGroup& group) {
                  expect_throws<CommunicationError>("communication hook", [&] { hooked(group, hook); });
                  expect_throws<CommunicationError>(part, [&] { hooked(group, hook); });
              }) == "");
    };
    fails(" of shape (2,)", [](const GradientBucket&, ProcessGroup&) { return Tensor::zeros({2}); });
    fails("and f64 on", [](const GradientBucket& b, ProcessGroup&) { return b.buffer().to(DType::f64); });
    fails("an undefined tensor", [](const GradientBucket&, ProcessGroup&) { return Tensor(); });
    fails("planted error on rank 1", [](const GradientBucket& bucket, ProcessGroup& group) {
        if (group.rank() == 1) throw Error("planted error on rank 1");
        return all_reduce_hook()(bucket, group);
    });
}

TEST_CASE("a hook is registered once, before training") {
    CHECK(on_ranks(1, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              model.register_comm_hook(group, all_reduce_hook());
              expect_throws<InvalidArgument>("register_comm_hook: called a second time",
                                             [&] { model.register_comm_hook(group, all_reduce_hook()); });
              DistributedDataParallel trained(seeded_mlp(), group);
              (void)trained.forward(Rows(0).x);
              expect_throws<InvalidArgument>("training has begun",
                                             [&] { trained.register_comm_hook(group, all_reduce_hook()); });
          }) == "");
    CHECK_THROWS_AS(power_sgd_hook({.rank = 0}), InvalidArgument);
    CHECK_THROWS_AS(power_sgd_hook({.min_compression_rate = 0}), InvalidArgument);
    CHECK_THROWS_AS(power_sgd_hook({.start_iteration = 1}), InvalidArgument);
    CHECK_NOTHROW(power_sgd_hook({.start_iteration = 0, .use_error_feedback = false, .warm_start = false}));
}

TEST_CASE("PowerSGD is exact for sums of low rank, vectors and small matrices") {
    const auto low_rank = [](int rank, std::int64_t r, std::int64_t c) {
        return (rank + 1.0) * std::cos(static_cast<double>(r)) * std::sin(1 + static_cast<double>(c)) +
               (rank - 3.0) * static_cast<double>(r - 4) * std::cos(2 + static_cast<double>(c));
    };
    CHECK(on_ranks(3, [&](ProcessGroup& group) {
              const auto hook = power_sgd_hook({.rank = 2, .start_iteration = 2});
              for (int i = 0; i < 5; ++i) {
                  Values wanted(12 * 20 + 3, 0);
                  for (int rank = 0; rank < 3; ++rank) {
                      const Values part = entries(rank, 12, 20, low_rank);
                      for (std::size_t k = 0; k < wanted.size(); ++k) wanted[k] += part[k];
                  }
                  const Values own = entries(group.rank(), 12, 20, low_rank);
                  const Tensor found = hook(bucket_of(own, 12, 20), group);
                  expect_close(found.to_vector<float>(), wanted, 1e-4, fmt::format("backward {}", i));
              }
              // (4, 5) with rank 2: sending 18 numbers instead of 20 is not worthwhile.
              const auto small = power_sgd_hook({.rank = 2, .start_iteration = 2});
              for (int i = 0; i < 4; ++i) {
                  Values wanted(4 * 5 + 3, 0);
                  for (int rank = 0; rank < 3; ++rank) {
                      const Values part = entries(rank, 4, 5, full_rank);
                      for (std::size_t k = 0; k < wanted.size(); ++k) wanted[k] += part[k];
                  }
                  const Values own = entries(group.rank(), 4, 5, full_rank);
                  expect_close(small(bucket_of(own, 4, 5), group).to_vector<float>(), wanted, 1e-5, "small");
              }
          }) == "");
}

TEST_CASE("PowerSGD converges to the best approximation, and error feedback loses nothing permanently") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              constexpr std::int64_t rows = 10, columns = 14;
              std::vector<double> sum(rows * columns, 0);
              for (int rank = 0; rank < 2; ++rank) {
                  const Values part = entries(rank, rows, columns, full_rank);
                  for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += static_cast<double>(part[k]);
              }
              const Values own = entries(group.rank(), rows, columns, full_rank);
              const auto after = [&](const CommunicationHook& hook, int times) {  // the last one, and the mean of all
                  std::pair<Values, std::vector<double>> result{{}, std::vector<double>(sum.size(), 0)};
                  for (int i = 0; i < times; ++i) {
                      result.first = hook(bucket_of(own, rows, columns), group).to_vector<float>();
                      for (std::size_t k = 0; k < sum.size(); ++k)
                          result.second[k] += static_cast<double>(result.first[k]) / times;
                  }
                  return result;
              };
              const auto distance = [&](const auto& found) {
                  double squares = 0;
                  for (std::size_t k = 0; k < sum.size(); ++k)
                      squares += std::pow(static_cast<double>(found[k]) - sum[k], 2);
                  return std::sqrt(squares);
              };
              const auto plain = after(power_sgd_hook({.start_iteration = 2, .use_error_feedback = false}), 200);
              const std::vector<double> best = best_of_rank_1(sum, rows, columns);
              for (std::size_t k = 0; k < best.size(); ++k)
                  expect(std::abs(static_cast<double>(plain.first[k]) - best[k]) < 1e-3,
                         fmt::format("element {} of the approximation is {}, not {}", k, plain.first[k], best[k]));
              const auto fed = after(power_sgd_hook({.start_iteration = 2}), 200);
              expect(distance(fed.second) < 0.1 * distance(best),
                     fmt::format("with error feedback the mean is {} off, without {}", distance(fed.second),
                                 distance(best)));
          }) == "");
}

TEST_CASE("training with PowerSGD reduces the loss, and all ranks stay identical") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group, {.bucket_bytes = 64});
              model.register_comm_hook(group, power_sgd_hook({.start_iteration = 2, .min_compression_rate = 1}));
              SGD sgd(model, {.lr = 0.05});
              const Rows rows(9);
              const double first = model.step(sgd, rows.x, rows.y, mse_loss).item();
              double last = first;
              for (int i = 0; i < 60; ++i) last = model.step(sgd, rows.x, rows.y, mse_loss).item();
              expect(last < 0.5 * first, fmt::format("the loss changed from {} to {}", first, last));
              model.engine().verify_replicas();
          }) == "");
}
