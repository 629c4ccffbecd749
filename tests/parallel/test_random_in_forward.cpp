// Random tensors in forward are a function of seed, step, call, global row and element: the same bits on any number of
// devices, in a variational autoencoder, a diffusion step and layers with noise.
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/random_nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

using Values = std::vector<float>;

/// Random tensors of the batch, of the transposed batch, of a parameter, and of what follows from these.
struct Numbers {
    ls::Linear fc{5, 2};
    ls::Dropout mode{0.5};  // for train() and eval()
    LOCKSTEP_MEMBERS(fc, mode)
    std::vector<ls::Tensor> forward(const ls::Tensor& x) {
        const ls::Tensor swapped = x.transpose(0, 1);
        const ls::Tensor of_weight = ls::randn_like(fc.weight);                // call 0
        const ls::Tensor of_noise = ls::rand_like(of_weight * fc.weight);      // 1
        const ls::Tensor of_mixture = ls::randn_like(fc.weight * ls::sum(x));  // 2
        return {ls::randn_like(x),                                             // 3
                ls::bernoulli(ls::full_like(x, 0.25)),                         // 4
                ls::normal(x, 0),
                of_weight,
                of_noise,
                of_mixture,
                ls::randn_like(swapped).transpose(0, 1)};
    }
};

ls::DataParallel<Numbers> numbers(int devices, int shards, std::uint64_t seed = 3) {
    return ls::DataParallel<Numbers>(Numbers{}, cpu_devices(devices), {.shards = shards, .seed = seed});
}

std::vector<Values> values_of(const std::vector<ls::Tensor>& tensors) {
    std::vector<Values> all;
    for (const ls::Tensor& tensor : tensors) all.push_back(tensor.to_vector<float>());
    return all;
}

ls::Tensor rows(std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < 5 * count; ++i) values.push_back(static_cast<float>(i));
    return ls::Tensor::from(values, {count, 5});
}

/// A part of the values for each shard.
std::set<Values> parts(const Values& all, std::size_t shards) {
    std::set<Values> found;
    const auto size = static_cast<std::ptrdiff_t>(all.size() / shards);
    for (auto at = all.begin(); at != all.end(); at += size) found.emplace(at, at + size);
    return found;
}

/// All parameters after some steps, and the last loss.
template <class Net>
Values trained(int devices, const ls::StepOptions& options, double& loss) {
    ls::DataParallel<Net> model(seeded_net<Net>(), cpu_devices(devices), {.shards = 8, .seed = 5});
    ls::Adam adam(model, {.lr = 0.02});
    loss = train_random<Net>(model, adam, 30, options);
    model.engine().verify_replicas();
    return flat_weights_of(model);
}

/// Attention of equal weights to the five elements of a row, with dropout.
struct EqualAttention {
    ls::Linear fc{5, 2};
    ls::Dropout mode{0.5};  // for train() and eval()
    LOCKSTEP_MEMBERS(fc, mode)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor value = x.reshape({x.size(0), 5, 1}), zero = value * 0;
        return ls::scaled_dot_product_attention(zero, zero, value, {.dropout_p = 0.5}).reshape({x.size(0), 5});
    }
};

/// Draws on the host.
struct Host {
    ls::Linear a{4, 4};
    int kind = 0;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) {
        if (kind == 1) return a(x) + ls::Tensor::rand({4});
        if (kind == 2) return ls::Linear(4, 4)(a(x));
        return a(x) + ls::Tensor::randn({4});
    }
};

/// Draws with the inputs as parameters.
struct Draws {
    ls::Linear a{2, 2};
    bool probabilities = false;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x) { return a(probabilities ? ls::bernoulli(x) : ls::normal(0, x)); }
};

template <class Net>
void check_devices(double most) {
    double first = 0, loss = 0;
    const Values one = trained<Net>(1, {}, first);
    CHECK(first < most);
    for (const int devices : {2, 3, 8}) {
        CHECK(trained<Net>(devices, {}, loss) == one);
        CHECK(loss == first);
    }
    double in_parts = 0;
    const Values accumulated = trained<Net>(1, {.accumulation_steps = 2}, in_parts);
    CHECK(accumulated != one);  // microbatches have their own numbers
    for (const int devices : {3, 8}) CHECK(trained<Net>(devices, {.accumulation_steps = 2}, loss) == accumulated);
}

}  // namespace

TEST_CASE("numbers of a batch are those of one shard, and of the documented counters") {
    const ls::NoGrad no_grad;
    for (const std::int64_t count : {1, 8, 20}) {
        ls::DataParallel<Numbers> single = numbers(1, 1);
        single.train();
        const auto expected = values_of(single.forward(rows(count)));
        ls::StepCounters state;
        state.seed = 3;
        for (std::uint64_t e = 0; e < 5 * static_cast<std::uint64_t>(count); ++e)
            CHECK(expected[1][e] == (ls::to_uniform(ls::random_bits(state, 4, e)) < 0.25F ? 1 : 0));
        for (const int devices : {1, 3, 8}) {
            ls::DataParallel<Numbers> model = numbers(devices, 8);
            model.train();
            const auto found = values_of(model.forward(rows(count)));
            for (const std::size_t i : {0u, 1u, 2u}) CHECK(found[i] == expected[i]);
        }
    }
}

TEST_CASE("dropout of attention has the documented counters on any number of shards") {
    const ls::NoGrad no_grad;
    ls::StepCounters state;
    state.seed = 3;
    Values expected;
    for (std::uint64_t row = 0; row < 20; ++row)
        for (std::uint64_t query = 0; query < 5; ++query) {
            float sum = 0;
            for (std::uint64_t key = 0; key < 5; ++key)
                if (ls::to_uniform(ls::random_bits(state, 0, (5 * row + query) * 5 + key)) >= 0.5F)
                    sum += 2 * static_cast<float>(5 * row + key);
            expected.push_back(sum * 0.2F);
        }
    for (const int devices : {1, 3, 8}) {
        ls::DataParallel<EqualAttention> model(EqualAttention{}, cpu_devices(devices), {.shards = 8, .seed = 3});
        model.train();
        const Values found = model.forward(rows(20)).to_vector<float>();
        for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i] == Approx(expected[i]));
    }
}

TEST_CASE("numbers of parameters are equal on all shards, others differ") {
    const ls::NoGrad no_grad;
    for (const int devices : {1, 3, 8}) {
        ls::DataParallel<Numbers> model = numbers(devices, 8);
        model.train();
        const auto found = values_of(model.forward(rows(16)));
        CHECK(parts(found[3], 8).size() == 1);
        CHECK(parts(found[4], 8).size() == 1);
        CHECK(parts(found[5], 8).size() == 8);
        CHECK(parts(found[6], 8).size() == 8);
        ls::DataParallel<Numbers> single = numbers(1, 1);
        const auto alone = values_of(single.forward(rows(16)));
        CHECK(*parts(found[3], 8).begin() == alone[3]);
        CHECK(found == values_of(numbers(1, 8).forward(rows(16))));
    }
}

TEST_CASE("calls, forwards, steps, seeds and evaluation have different numbers, and repeat in a replay") {
    const ls::NoGrad no_grad;
    const auto forwards = [](ls::DataParallel<Numbers>& model, std::set<Values>& seen) {
        std::vector<Values> all;
        for (int i = 0; i < 3; ++i) all.push_back(values_of(model.forward(rows(12)))[0]);
        seen.insert(all.begin(), all.end());
        return all;
    };
    std::set<Values> seen;
    std::vector<std::vector<Values>> first;
    for (const int devices : {1, 2, 3}) {
        ls::DataParallel<Numbers> model = numbers(devices, 6);
        std::vector<Values> all;
        const auto add = [&] {
            for (const Values& values : forwards(model, seen)) all.push_back(values);
        };
        model.train();
        add();
        model.engine().set_steps_done(1);
        add();
        model.eval();
        add();
        model.engine().set_steps_done(2);
        add();
        first.push_back(all);
        CHECK(seen.size() == all.size());
        CHECK(all == first[0]);
    }
    ls::DataParallel<Numbers> other = numbers(2, 6, 4);
    const std::size_t before = seen.size();
    forwards(other, seen);
    CHECK(seen.size() == before + 3);
}

TEST_CASE("evaluation between steps does not change training") {
    std::vector<Values> results;
    for (const bool evaluates : {false, true}) {
        ls::DataParallel<Autoencoder> model(seeded_net<Autoencoder>(), cpu_devices(2), {.shards = 4, .seed = 5});
        ls::Adam adam(model, {.lr = 0.01});
        for (int i = 0; i < 3; ++i) {
            (void)train_random<Autoencoder>(model, adam, 1);
            if (!evaluates) continue;
            const ls::NoGrad no_grad;
            model.eval();
            const auto a = model.forward(data_rows()), b = model.forward(data_rows());
            CHECK(std::get<0>(a).to_vector<float>() != std::get<0>(b).to_vector<float>());
            CHECK(std::get<1>(a).to_vector<float>() == std::get<1>(b).to_vector<float>());
            model.train();
        }
        results.push_back(flat_weights_of(model));
    }
    CHECK(results[0] == results[1]);
}

TEST_CASE("a resumed run draws the numbers of an uninterrupted one") {
    const TemporaryDirectory directory;
    const auto path = directory / "net.safetensors";
    const ls::DataParallelOptions options{.shards = 6, .seed = 9};
    ls::DataParallel<Autoencoder> straight(seeded_net<Autoencoder>(), cpu_devices(3), options);
    ls::Adam adam(straight, {.lr = 0.02});
    (void)train_random<Autoencoder>(straight, adam, 4);
    ls::save(straight, path);
    ls::save_resume(straight, adam, {.epoch = 1, .batch = 4, .batch_size = 11, .steps = 4, .seed = 9}, path);
    (void)train_random<Autoencoder>(straight, adam, 4);
    ls::DataParallel<Autoencoder> resumed(Autoencoder{}, cpu_devices(2), options);
    ls::Adam other(resumed, {.lr = 1});
    ls::load(resumed, path);
    (void)ls::load_resume(resumed, other, path);
    (void)train_random<Autoencoder>(resumed, other, 4);
    CHECK(flat_weights_of(resumed) == flat_weights_of(straight));
}

TEST_CASE("a variational autoencoder gets the same bits on 1, 2, 3 and 8 devices") { check_devices<Autoencoder>(8); }
TEST_CASE("a diffusion step gets the same bits on 1, 2, 3 and 8 devices") { check_devices<Diffusion>(1.2); }
TEST_CASE("a network with noise on weights and draws gets the same bits on 1, 2, 3 and 8 devices") {
    check_devices<Noisy>(2);
}

TEST_CASE("a network with attention and dropout gets the same bits on 1, 2, 3 and 8 devices") {
    check_devices<Attending>(2);
}

TEST_CASE("numbers drawn on the host are refused inside forward") {
    const std::string advice =
        " inside forward draws its numbers on the host, only when forward is traced; expected rand_like, randn_like, "
        "bernoulli or normal of a tensor, which draw in every step";
    for (const auto& [kind, name] : {std::pair(0, "randn"), {1, "rand"}}) {
        Host host;
        host.kind = kind;
        ls::manual_seed(6);
        const Values expected = ls::Tensor::randn({4}).to_vector<float>();
        ls::DataParallel<Host> model(host, cpu_devices(2));
        ls::manual_seed(6);
        CHECK_THAT(message_of<ls::InvalidArgument>([&] {
                       (void)model.forward(ls::Tensor::zeros({4, 4}));
                   }),
                   contains(name + advice));
        CHECK(ls::Tensor::randn({4}).to_vector<float>() == expected);
    }
}

TEST_CASE("a layer made inside forward is refused as a layer that is missing in LOCKSTEP_MEMBERS") {
    Host host;
    host.kind = 2;
    ls::DataParallel<Host> model(host, cpu_devices(2));
    CHECK_THAT(message_of<ls::InvalidArgument>([&] {
                   (void)model.forward(ls::Tensor::zeros({4, 4}));
               }),
               contains("linear: a tensor of shape (4, 4) requires a gradient and is not a parameter of the model"));
}

TEST_CASE("invalid parameters refuse the step and name the row of the batch") {
    for (const bool probabilities : {false, true})
        for (const int devices : {1, 3}) {
            Draws draws;
            draws.probabilities = probabilities;
            ls::DataParallel<Draws> model(draws, cpu_devices(devices));
            ls::Adam adam(model, {.lr = 0.1});
            const Values before = model->a.weight->to_vector<float>();
            std::vector<float> x(16, 0.5F);
            x[11] = -0.25F;
            const ls::Tensor y = ls::Tensor::zeros({8, 2});
            const ls::StepLoss loss = model.step(adam, ls::Tensor::from(x, {8, 2}), y, ls::mse_loss);
            const std::string message = message_of<ls::StepError>([&] { (void)loss.item(); });
            INFO(message);
            CHECK(contains(message, std::string("step 0: ") + (probabilities ? "probability" : "std") +
                                        " -0.25 in row 5 of the batch is out of range (shard "));
            CHECK(contains(message, probabilities ? "expected [0, 1]" : "expected 0 or more"));
            CHECK(model->a.weight->to_vector<float>() == before);
            (void)model.step(adam, ls::Tensor::full({8, 2}, 0.5), y, ls::mse_loss).item();
            CHECK(model->a.weight->to_vector<float>() != before);
        }
}
